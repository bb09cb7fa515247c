// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/core/runtime.hpp"
#include "deltaport/core/tensor.hpp"
#include "deltaport/recurrence/options.hpp"

/// Gated DeltaNet (Yang, Kautz, Hatamizadeh, arXiv 2412.06464) and Gated DeltaNet 2 (Hatamizadeh, Choi,
/// Kautz, arXiv 2605.22791). Shape letters: B batch, T tokens, H key heads, HV value heads (HV = G * H; value
/// head j reads key head j / G), K key dim, V value dim, C chunk, N sequences (B when cu_seqlens is absent).
/// All tensors are row-major in the execution space's memory. Everything is enqueued to the runtime's compute
/// stream; outputs, saved tensors and scratch come from its arena. No atomics: the same inputs give the same
/// bits for any number of threads.
///
/// T, the type of q, k, v, o and their gradients, is bfloat16, float16, float or double. States, gates and
/// every sum are of type A = Accumulate<T> (float32, or float64 for double); halves are rounded once, when a
/// result is written.
///
/// KDA (Kimi Delta Attention) is GDN2 with b[..., k] = w[..., v] = beta: broadcast beta to b and w, and add up
/// db over K and dw over V to get its gradient.
namespace deltaport::recurrence {

/// Per token and value head: S <- exp(g) S; e = beta (v - S^T k); S <- S + k e^T; o = scale S^T q.
/// Of g and raw_gate exactly one is given, as Options::gate says; so of beta and raw_beta (Options::beta).
template <class T>
struct GdnInputs {
  using A = Accumulate<T>;
  Tensor<T> q;                      ///< [B, T, H, K]
  Tensor<T> k;                      ///< [B, T, H, K]
  Tensor<T> v;                      ///< [B, T, HV, V]
  Tensor<A> g;                      ///< [B, T, HV] log decay, <= 0 down to -inf
  Tensor<A> beta;                   ///< [B, T, HV]
  Tensor<A> initial_state;          ///< [N, HV, K, V]; empty means zero
  Tensor<std::int32_t> cu_seqlens;  ///< [N + 1]; empty means B sequences of T tokens. Needs B = 1.
  Tensor<T> raw_gate;               ///< [B, T, HV] before the gate activation; -inf is no decay
  Tensor<T> raw_beta;               ///< [B, T, HV] before the sigmoid
  Tensor<A> A_log;                  ///< [HV], with softplus; optional with lower_bounded
  Tensor<A> dt_bias;                ///< [HV], optional, with raw_gate
};

/// S <- Diag(exp(g)) S; r = w v - S^T (b k); S <- S + k r^T; o = scale S^T q; b erase gate, w write gate.
/// g (or raw_gate) and b have HV heads, or H heads shared by the G value heads of a group (their gradients are
/// then summed). b and w are pre-activations where Options::beta and Options::write_gate say so.
template <class T>
struct Gdn2Inputs {
  using A = Accumulate<T>;
  Tensor<T> q;              ///< [B, T, H, K]
  Tensor<T> k;              ///< [B, T, H, K]
  Tensor<T> v;              ///< [B, T, HV, V]
  Tensor<A> g;              ///< [B, T, HV or H, K] log decay per key channel, <= 0 down to -inf
  Tensor<T> b;              ///< [B, T, HV or H, K]
  Tensor<T> w;              ///< [B, T, HV, V]
  Tensor<A> initial_state;  ///< [N, HV, K, V]; empty means zero
  Tensor<std::int32_t> cu_seqlens;
  Tensor<T> raw_gate;  ///< shaped like g, instead of it; -inf is no decay
  Tensor<A> A_log;     ///< [heads of raw_gate], with softplus; optional with lower_bounded
  Tensor<A> dt_bias;   ///< [heads of raw_gate, K], optional, with raw_gate
};

/// What GDN keeps for backward besides the inputs, which it shares as they were given: activations are computed
/// again. Empty where the implementation has no use for it: `reference` keeps only inputs; `portable` builds
/// decays from g itself (a cumulated sum cannot express g = -inf), so it leaves g_cumsum empty. Rows that no
/// sequence covers are not written.
template <class T>
struct GdnSaved {
  using A = Accumulate<T>;
  GdnInputs<T> inputs;
  Tensor<A> g_cumsum;  ///< [B, T, HV] inclusive sum of g within the chunk
  Tensor<T> inverse;   ///< [B, T, HV, C] (I + A0)^-1 of every chunk, A0_ij = beta_i k_i.k_j exp(g_j+1 + .. +
                       ///< g_i), i > j
  Tensor<A> wide_inverse;  ///< the same in A, instead of it, where a half T was computed as float32
  Tensor<T>
      prepared;     ///< of Keep::preparation, in a layout of `cuda`'s own; without it backward makes it again
  Options options;  ///< as resolved by forward
};

/// What GDN2 keeps for backward besides the inputs; empty as for GdnSaved.
template <class T>
struct Gdn2Saved {
  using A = Accumulate<T>;
  Gdn2Inputs<T> inputs;
  Tensor<A> g_cumsum;                   ///< like g
  Tensor<T> scores;                     ///< [B, T, HV, C] masked q k^T with decay ("Aqk")
  Tensor<T> inverse;                    ///< [B, T, HV, C]
  Tensor<A> wide_scores, wide_inverse;  ///< as in GdnSaved
  Tensor<T> prepared;                   ///< as in GdnSaved
  Options options;
};

template <class Saved, class T>
struct ForwardResult {
  Tensor<T> o;                        ///< [B, T, HV, V]; rows that no sequence covers are zero
  Tensor<Accumulate<T>> final_state;  ///< [N, HV, K, V] when asked for, else empty
  Saved saved;
};

/// Of dg and d_raw_gate the one that was given as input, likewise dbeta and d_raw_beta; the other is empty.
template <class T>
struct GdnGradients {
  using A = Accumulate<T>;
  Tensor<T> dq, dk;          ///< [B, T, H, K], summed over the value heads of each group
  Tensor<T> dv;              ///< [B, T, HV, V]
  Tensor<A> dg, dbeta;       ///< [B, T, HV]
  Tensor<A> dinitial_state;  ///< [N, HV, K, V] when an initial state was given, else empty
  Tensor<T> d_raw_gate;      ///< [B, T, HV]
  Tensor<T> d_raw_beta;      ///< [B, T, HV]
  Tensor<A> dA_log;          ///< [HV] when A_log was given
  Tensor<A> ddt_bias;        ///< [HV] when dt_bias was given
};

template <class T>
struct Gdn2Gradients {
  using A = Accumulate<T>;
  Tensor<T> dq, dk;
  Tensor<T> dv;
  Tensor<A> dg;      ///< shaped like g
  Tensor<T> db, dw;  ///< shaped like b and w, with respect to them as they were given
  Tensor<A> dinitial_state;
  Tensor<T> d_raw_gate;  ///< shaped like raw_gate
  Tensor<A> dA_log;      ///< [gate heads] when A_log was given
  Tensor<A> ddt_bias;    ///< [gate heads, K] when dt_bias was given
};

/// Forward. Throws ShapeError naming the argument, what was found and what is allowed, also for an
/// implementation that this build does not have or that cannot do these sizes.
template <class T>
ForwardResult<GdnSaved<T>, T> gdn_forward(Runtime& runtime, const GdnInputs<T>& inputs,
                                          const Options& options = {});
template <class T>
ForwardResult<Gdn2Saved<T>, T> gdn2_forward(Runtime& runtime, const Gdn2Inputs<T>& inputs,
                                            const Options& options = {});

/// Backward of the forward that returned `saved`. Of `saved` only inputs, options and the tensors above are
/// read, so they may have been moved meanwhile. d_o [B, T, HV, V]; d_final_state [N, HV, K, V] or empty. The
/// per-chunk states are recomputed. Gradients of rows that no sequence covers are zero.
template <class T>
GdnGradients<T> gdn_backward(Runtime& runtime, const GdnSaved<T>& saved, const Tensor<T>& d_o,
                             const Tensor<Accumulate<T>>& d_final_state = {});
template <class T>
Gdn2Gradients<T> gdn2_backward(Runtime& runtime, const Gdn2Saved<T>& saved, const Tensor<T>& d_o,
                               const Tensor<Accumulate<T>>& d_final_state = {});

/// One token for each of N sequences (T = 1, B = N): updates `state` in place and returns o [N, 1, HV, V].
/// Inputs are shaped as for B = N, T = 1; initial_state and cu_seqlens must be empty. Of `options`,
/// chunk_size, output_final_state and save_for_backward mean nothing here.
///
/// Without state_indices, state is [N, HV, K, V]. With state_indices [N], state is [slots, HV, K, V] and
/// sequence n has slot state_indices[n]. A negative index marks a padding row: its o is zero and no state
/// changes. Two rows with the same slot are the caller's error (a race), as are slots out of range (ShapeError
/// where the execution space is the host's; a padding row elsewhere).
template <class T>
Tensor<T> gdn_step(Runtime& runtime, const GdnInputs<T>& inputs, const Tensor<Accumulate<T>>& state,
                   const Options& options = {}, const Tensor<std::int32_t>& state_indices = {});
template <class T>
Tensor<T> gdn2_step(Runtime& runtime, const Gdn2Inputs<T>& inputs, const Tensor<Accumulate<T>>& state,
                    const Options& options = {}, const Tensor<std::int32_t>& state_indices = {});

}  // namespace deltaport::recurrence
