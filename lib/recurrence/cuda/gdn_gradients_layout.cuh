// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/factors.cuh"
#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn_gradients.cuh"
#include "recurrence/cuda/movement.cuh"

/// Shared memory and barriers of the gradient kernel, and its last step, the gates.
namespace deltaport::recurrence::cuda {

namespace gradients {

constexpr int threads = 4 * group_threads;

/// Barriers of the block; 0 is __syncthreads. After the last value tile the groups meet in pairs, as each needs it.
enum Sync : int {
  sync_gates_group = 1,
  sync_all,
  sync_y,
  sync_y_odd,
  sync_m,
  sync_e,  ///< dX is there, without decays, and nobody reads Y any more
  sync_d,  ///< dX is there with decays
  sync_h,
  sync_read,    ///< the second and the third group have read the last states
  sync_n,       ///< dR of the first group is there, in float
  sync_scores,  ///< the others' sums are there
  sync_sums,
  sync_d_y,
  sync_d_y_odd
};

/// What has been loaded: K and the factors; S, V and dO of even and odd value tiles; dS' of the two; R and X; A; Q.
enum Loaded : int {
  loaded_keys,
  loaded_values,
  loaded_d_states = loaded_values + 2,
  loaded_products = loaded_d_states + 2,
  loaded_inverse,
  loaded_queries,
  barrier_count
};

template <int padded_k>
struct Layout {
  static constexpr int wide = padded_k * 128;
  static constexpr int k = 0, q = wide, inverse = 2 * wide;  // A high, A low
  static constexpr int r = inverse + 2 * panel_bytes;
  static constexpr int d_r = r + panel_bytes;  // dO Y^T
  static constexpr int m = d_r + panel_bytes;  // diag(rstd q) dP
  static constexpr int x = m + panel_bytes;
  static constexpr int d_x = x + wide;                   // dXu
  static constexpr int values = d_x + wide;              // two of the following
  static constexpr int v = 0, d_o = panel_bytes, h = v;  // of the last tile's place, H twice
  static constexpr int d_y = 2 * panel_bytes, s = 3 * panel_bytes, d_s = s + wide;
  static constexpr int value_bytes = d_s + wide;
  static constexpr int factors = values + 2 * value_bytes;
  static constexpr int sums = factors + factor_rows * 256;
  static constexpr int barriers = sums + 16 * 256;
  static constexpr int bytes = barriers + barrier_count * 8;
  static_assert(bytes <= 227 * 1024);
};
/// Rows of 64 floats where the groups meet.
enum Sum : int {
  sum_query,        // sum over k of dq_S q^
  sum_row,          // of the fourth group: its rows' part of dG
  sum_beta,         // dbeta
  sum_score,        // sums over rows of N
  sum_column = 4,   // 4 rows, one per warp: column sums of N
  sum_row_x = 8,    // t
  sum_states = 12,  // 4 numbers: <S, dS'> of the third group's warps
};

/// The gradients of one token's gates, given those of its log decay and beta; `shared` is scratch of two floats.
template <class E>
__device__ void write_gate_gradients(const GdnGradients& a, const Chunk& chunk, std::int64_t slot, int head,
                                     int t, float dg, float dbeta, float* shared) {
  const std::int64_t at = (chunk.row + t) * a.value_heads + head;
  const bool inside = t < chunk.rows;
  const Activations& act = a.activations;
  if (act.beta != Beta::plain) {
    if (inside) {
      const float s = sigmoid(to_float(static_cast<const E*>(a.raw_beta)[at]));
      const float slope = (act.beta == Beta::doubled_sigmoid ? 2.0f : 1.0f) * s * (1.0f - s);
      static_cast<E*>(a.d_raw_beta)[at] = from_float<E>(dbeta * slope);
    }
  } else if (inside) {
    a.dbeta[at] = dbeta;
  }
  if (act.gate == Gate::log_decay) {
    if (inside) a.dg[at] = dg;
    return;
  }
  float d_rate = 0.0f, d_bias = 0.0f;
  if (inside) {
    float x = to_float(static_cast<const E*>(a.raw_gate)[at]);
    if (act.dt_bias != nullptr) x += act.dt_bias[head];
    const float rate = rate_of(act, head);
    // A gate that forgets all has no gradient; what roundings leave would meet a slope as large as the gate.
    const float natural = log_decay(act.gate, x, rate, act.gate_lower_bound);
    if (natural < lowest_log_decay) dg = 0.0f;
    const float slope = log_decay_slope(act.gate, x, rate, act.gate_lower_bound);
    d_bias = pass_on(dg, slope);
    d_rate = act.gate == Gate::softplus ? pass_on(dg, natural) : pass_on(d_bias, x);
    static_cast<E*>(a.d_raw_gate)[at] = from_float<E>(d_bias);
  }
  if (a.partials == nullptr) return;
  d_rate = sum_warp(d_rate), d_bias = sum_warp(d_bias);
  if (t == 32) shared[0] = d_rate, shared[1] = d_bias;
  named_barrier<sync_sums, 64>();
  if (t == 0) {
    float* const to = a.partials + (slot * a.value_heads + head) * 2;
    to[0] = d_rate + shared[0], to[1] = d_bias + shared[1];
  }
}

}  // namespace gradients

}  // namespace deltaport::recurrence::cuda
