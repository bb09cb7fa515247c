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

__device__ __forceinline__ float4 operator*(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
__device__ __forceinline__ float4 operator*(float4 a, float b) {
  return {a.x * b, a.y * b, a.z * b, a.w * b};
}

__device__ __forceinline__ float sigmoid_fast(float x) {
  return __fdividef(1.0f, 1.0f + exp2_fast(-log2_e * x));
}
__device__ __forceinline__ float softplus_fast(float x) {
  const float t = exp2_fast(-log2_e * fabsf(x));
  const float log1p = t < 0x1p-8f ? t - 0.5f * t * t : __logf(1.0f + t);
  return fmaxf(x, 0.0f) + log1p;  // NaN comes through log1p
}
/// A_log of a head and its exponential.
struct Rate {
  float log, rate;
};
__device__ __forceinline__ Rate read_rate(const Activations& activations, int head) {
  const float log = activations.a_log == nullptr ? 0.0f : activations.a_log[head];
  return {log, rate_of(log)};
}
/// Below this softplus and sigmoid are exp to the last bit; a large rate times an exponential that has underflowed would
/// lose what their logarithms still say.
constexpr float tail = -17.0f;
__device__ __forceinline__ float exp_tail(float x, const Rate& rate) {
  return exp2_fast(log2_e * (x + rate.log));
}
__device__ __forceinline__ float natural_decay(Gate gate, float x, const Rate& rate, float lower_bound) {
  if (gate == Gate::lower_bounded) return lower_bound * sigmoid_fast(rate.rate * x);
  return -(x < tail ? exp_tail(x, rate) : rate.rate * softplus_fast(x));
}
/// Its derivative with respect to x, of a softplus gate.
__device__ __forceinline__ float softplus_slope(float x, const Rate& rate) {
  return -(x < tail ? exp_tail(x, rate) : rate.rate * sigmoid_fast(x));
}
__device__ __forceinline__ float2 erase_gate(Beta beta, float2 x) {
  if (beta == Beta::plain) return x;
  const float factor = beta == Beta::sigmoid ? 1.0f : 2.0f;
  return {factor * sigmoid_fast(x.x), factor * sigmoid_fast(x.y)};
}
__device__ __forceinline__ float4 erase_gate(Beta beta, float4 x) {
  const float2 first = erase_gate(beta, float2{x.x, x.y}), second = erase_gate(beta, float2{x.z, x.w});
  return {first.x, first.y, second.x, second.y};
}

}  // namespace deltaport::recurrence::cuda
