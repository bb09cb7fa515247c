// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/factors.cuh"

/// Gates of GDN2, which has one per row and channel: the functions of factors.cuh in few instructions, with relative
/// errors of about 1e-6 (softplus up to 1e-4 where it is small), far below the rounding of the operands.
namespace deltaport::recurrence::cuda {

__device__ __forceinline__ float2 operator*(float2 a, float2 b) {
  return {a.x * b.x, a.y * b.y};
}
__device__ __forceinline__ float2 operator*(float2 a, float b) {
  return {a.x * b, a.y * b};
}

__device__ __forceinline__ float sigmoid_fast(float x) {
  return __fdividef(1.0f, 1.0f + exp2_fast(-log2_e * x));
}
__device__ __forceinline__ float softplus_fast(float x) {
  const float t = exp2_fast(-log2_e * fabsf(x));
  const float log1p = t < 0x1p-8f ? t - 0.5f * t * t : __logf(1.0f + t);
  return fmaxf(x, 0.0f) + log1p;  // NaN comes through log1p
}
/// log2 of the decay, clamped; NaN stays NaN: a fault in the input must show.
__device__ __forceinline__ float clamped_log2(float natural) {
  return (natural < lowest_log_decay ? lowest_log_decay : natural) * log2_e;
}
__device__ __forceinline__ float natural_decay(Gate gate, float x, float rate, float lower_bound) {
  return gate == Gate::softplus ? -rate * softplus_fast(x) : lower_bound * sigmoid_fast(rate * x);
}
__device__ __forceinline__ float2 erase_gate(Beta beta, float2 x) {
  if (beta == Beta::plain) return x;
  const float factor = beta == Beta::sigmoid ? 1.0f : 2.0f;
  return {factor * sigmoid_fast(x.x), factor * sigmoid_fast(x.y)};
}

}  // namespace deltaport::recurrence::cuda
