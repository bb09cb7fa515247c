// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/chunks.cuh"

/// Per-token numbers of a chunk: gates, norms and what the scan multiplies rows with.
namespace deltaport::recurrence::cuda {

/// Rows of the factor array of one chunk and value head, 64 floats each. Rows that have no token: beta and the
/// products are 0, G repeats the last value, the reciprocal norms are 1.
enum Factor : int {
  factor_beta,        ///< beta_t
  factor_erase,       ///< beta_t e_t rstd_k,t
  factor_query,       ///< scale e_t rstd_q,t
  factor_decay,       ///< G_t, log2 of e_t
  factor_query_norm,  ///< rstd_q,t (1 without l2 norm)
  factor_key_norm,
  factor_rows
};

constexpr float log2_e = 1.44269504088896340736f;
/// A gate below this forgets everything in float32: 2^-127 is flushed to zero. Clamping keeps -inf finite, so
/// that differences of cumulative sums stay numbers.
constexpr float lowest_log_decay = -88.1f;

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/// exp(A_log), at most the largest float: an infinite one times a softplus of zero would be no number. NaN stays.
__device__ __forceinline__ float rate_of(float a_log) {
  const float rate = expf(a_log);
  return rate > 3.4028234e38f ? 3.4028234e38f : rate;
}
__device__ __forceinline__ float rate_of(const Activations& activations, int head) {
  return activations.a_log == nullptr ? 1.0f : rate_of(activations.a_log[head]);
}
/// A gradient times what may be infinite: where none arrives, none leaves.
__device__ __forceinline__ float pass_on(float gradient, float factor) {
  return gradient == 0.0f ? 0.0f : gradient * factor;
}
/// Natural log decay of a pre-activation.
__device__ __forceinline__ float log_decay(Gate gate, float x, float rate, float lower_bound) {
  return gate == Gate::softplus ? -rate * softplus(x) : lower_bound * sigmoid(rate * x);
}
/// Its derivative with respect to x.
__device__ __forceinline__ float log_decay_slope(Gate gate, float x, float rate, float lower_bound) {
  if (gate == Gate::softplus) return -rate * sigmoid(x);
  const float s = sigmoid(rate * x);
  const float slope = s * (1.0f - s);
  return slope == 0.0f ? 0.0f : lower_bound * rate * slope;
}
__device__ __forceinline__ float beta_of(Beta beta, float x) {
  return beta == Beta::plain ? x : beta == Beta::sigmoid ? sigmoid(x) : 2.0f * sigmoid(x);
}

/// Inclusive sum over the lanes of a warp.
__device__ __forceinline__ float sum_inclusive_warp(float x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

}  // namespace deltaport::recurrence::cuda
