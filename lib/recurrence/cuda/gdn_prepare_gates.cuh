// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn_prepare.cuh"

/// The gates of a chunk and value head, from the users' tensors to the rows of factors, while products are under way.
namespace deltaport::recurrence::cuda {

/// What the gates of one token and value head are made of; zero beyond the chunk.
struct RawGates {
  float decay = 0.0f, beta = 0.0f;
};
/// The gates of the block that will run here next, into the second-level cache; by threads 0 to 63.
/// `whole`: chunks have 64 rows.
template <class E, bool whole>
__device__ __forceinline__ void prefetch_later_gates(const GdnPrepare& a) {
  const std::uint32_t block = blockIdx.x + a.resident;
  if (block >= gridDim.x) return;
  const Task task = a.chunks.task(block, a.by_key_heads, true);
  const int t = threadIdx.x;
  if (!whole && t >= task.chunk.rows) return;
  const std::int64_t at = (task.chunk.row + t) * a.value_heads + task.head * a.group;
  const bool raw_gate = a.activations.gate != Gate::log_decay, raw_beta = a.activations.beta != Beta::plain;
  prefetch(raw_gate ? static_cast<const void*>(static_cast<const E*>(a.raw_gate) + at) : a.g + at);
  prefetch(raw_beta ? static_cast<const void*>(static_cast<const E*>(a.raw_beta) + at) : a.beta + at);
}
template <class E>
__device__ RawGates read_gates(const GdnPrepare& a, const Chunk& chunk, int head) {
  RawGates gates;
  const int t = threadIdx.x;
  if (t < chunk.rows) {
    const std::int64_t at = (chunk.row + t) * a.value_heads + head;
    gates.decay =
        a.activations.gate == Gate::log_decay ? a.g[at] : to_float(static_cast<const E*>(a.raw_gate)[at]);
    gates.beta =
        a.activations.beta == Beta::plain ? a.beta[at] : to_float(static_cast<const E*>(a.raw_beta)[at]);
  }
  return gates;
}
/// Thread t has row t, if there is one: writes beta, and what the later rows of the chunk want of warp 0 to `total`. Returns
/// the sum of the gates over the rows of the warp up to its own. `shrinks`: no beta of the warp enlarges the state.
__device__ __forceinline__ float sum_gates(const GdnPrepare& a, const Chunk& chunk, int head, RawGates gates,
                                           float* factors, float* total, bool& shrinks) {
  const int t = threadIdx.x;
  float log2_decay = 0.0f, beta = 0.0f;
  if (t < chunk.rows) {
    float natural = gates.decay;
    if (a.activations.gate != Gate::log_decay) {
      if (a.activations.dt_bias != nullptr) natural += a.activations.dt_bias[head];
      const float rate = rate_of(a.activations, head);
      natural = log_decay(a.activations.gate, natural, rate, a.activations.gate_lower_bound);
    }
    // NaN stays NaN: a fault in the input must show.
    log2_decay = (natural < lowest_log_decay ? lowest_log_decay : natural) * log2_e;
    beta = beta_of(a.activations.beta, gates.beta);
  }
  shrinks = __all_sync(0xffffffffu, beta >= 0.0f && beta <= 2.0f);
  const float sum = sum_inclusive_warp(log2_decay, t % 32);
  factors[factor_beta * 64 + t] = beta;
  if (t == 31) total[0] = sum, total[1] = shrinks ? 1.0f : 0.0f;
  return sum;
}
/// The other rows of factors, once betas, norms and `total` are there for all threads to see. By threads 0 to 63.
__device__ __forceinline__ void write_factors(const GdnPrepare& a, const Chunk& chunk, float sum,
                                              bool shrinks, float* factors, const float* total,
                                              float* forgetting) {
  const int t = threadIdx.x;
  if (t >= 32) sum += total[0];
  if (t == 63) *forgetting = a.activations.l2_norm && shrinks && total[1] != 0.0f ? sum : 0.0f;
  const float decay = exp2_fast(sum);
  float* const to = factors + t;
  to[64 * factor_decay] = sum;
  to[64 * factor_erase] = to[64 * factor_beta] * decay * to[64 * factor_key_norm];
  to[64 * factor_query] = t < chunk.rows ? a.activations.scale * decay * to[64 * factor_query_norm] : 0.0f;
}

}  // namespace deltaport::recurrence::cuda
