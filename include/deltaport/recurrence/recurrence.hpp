// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "deltaport/core/runtime.hpp"
#include "deltaport/core/tensor.hpp"

/// Gated DeltaNet (Yang, Kautz, Hatamizadeh, arXiv 2412.06464) and Gated DeltaNet 2 (Hatamizadeh, Choi,
/// Kautz, arXiv 2605.22791). Shape letters: B batch, T tokens, H key heads, HV value heads (HV = G * H; value
/// head j reads key head j / G), K key dim, V value dim, C chunk, N sequences (B when cu_seqlens is absent).
/// All tensors are row-major in the execution space's memory. Everything is enqueued to the runtime's compute
/// stream; outputs, saved tensors and scratch come from its arena. No atomics: the same inputs give the same
/// bits for any number of threads.
namespace deltaport::recurrence {

enum class Implementation {
  automatic,  ///< portable
  reference,  ///< token by token; obviously right, slow
  portable    ///< chunked (WY form), Kokkos TeamPolicy, any execution space
};
std::string_view name_of(Implementation implementation);

struct Options {
  double scale = 0.0;   ///< factor on q; 0 means K^-0.5
  int chunk_size = 64;  ///< 16, 32 or 64 (portable only)
  Implementation implementation = Implementation::automatic;
  bool output_final_state = false;
  /// Keep what backward needs. Without it `saved` of the result is empty.
  bool save_for_backward = true;
};

/// Per token and value head: S <- exp(g) S; e = beta (v - S^T k); S <- S + k e^T; o = scale S^T q.
template <class T>
struct GdnInputs {
  using A = Accumulate<T>;
  Tensor<T> q;                      ///< [B, T, H, K]
  Tensor<T> k;                      ///< [B, T, H, K]
  Tensor<T> v;                      ///< [B, T, HV, V]
  Tensor<A> g;                      ///< [B, T, HV] log decay, <= 0
  Tensor<A> beta;                   ///< [B, T, HV]
  Tensor<A> initial_state;          ///< [N, HV, K, V]; empty means zero
  Tensor<std::int32_t> cu_seqlens;  ///< [N + 1]; empty means B sequences of T tokens. Needs B = 1.
};

/// S <- Diag(exp(g)) S; r = w v - S^T (b k); S <- S + k r^T; o = scale S^T q; b erase gate, w write gate.
/// g and b have HV heads, or H heads shared by the G value heads of a group (their gradients are then
/// summed).
template <class T>
struct Gdn2Inputs {
  using A = Accumulate<T>;
  Tensor<T> q;              ///< [B, T, H, K]
  Tensor<T> k;              ///< [B, T, H, K]
  Tensor<T> v;              ///< [B, T, HV, V]
  Tensor<A> g;              ///< [B, T, HV or H, K] log decay per key channel, <= 0
  Tensor<T> b;              ///< [B, T, HV or H, K]
  Tensor<T> w;              ///< [B, T, HV, V]
  Tensor<A> initial_state;  ///< [N, HV, K, V]; empty means zero
  Tensor<std::int32_t> cu_seqlens;
};

/// What GDN keeps for backward besides the inputs, which it shares. Empty where the implementation has no use
/// for it: `reference` keeps only inputs; `portable` builds decays from g itself (a cumulated sum cannot
/// express g = -inf), so it leaves g_cumsum empty. Rows that no sequence covers are not written.
template <class T>
struct GdnSaved {
  using A = Accumulate<T>;
  GdnInputs<T> inputs;
  Tensor<A> g_cumsum;  ///< [B, T, HV] inclusive sum of g within the chunk
  Tensor<T> inverse;   ///< [B, T, HV, C] (I + A0)^-1 of every chunk, A0_ij = beta_i k_i.k_j exp(g_j+1 + .. +
                       ///< g_i), i > j
  Options options;     ///< as resolved by forward
};

/// What GDN2 keeps for backward besides the inputs; empty as for GdnSaved.
template <class T>
struct Gdn2Saved {
  using A = Accumulate<T>;
  Gdn2Inputs<T> inputs;
  Tensor<A> g_cumsum;  ///< like g
  Tensor<T> scores;    ///< [B, T, HV, C] masked q k^T with decay ("Aqk")
  Tensor<T> inverse;   ///< [B, T, HV, C]
  Options options;
};

template <class Saved, class T>
struct ForwardResult {
  Tensor<T> o;                        ///< [B, T, HV, V]; rows that no sequence covers are zero
  Tensor<Accumulate<T>> final_state;  ///< [N, HV, K, V] when asked for, else empty
  Saved saved;
};

template <class T>
struct GdnGradients {
  using A = Accumulate<T>;
  Tensor<T> dq, dk;          ///< [B, T, H, K], summed over the value heads of each group
  Tensor<T> dv;              ///< [B, T, HV, V]
  Tensor<A> dg, dbeta;       ///< [B, T, HV]
  Tensor<A> dinitial_state;  ///< [N, HV, K, V] when an initial state was given, else empty
};

template <class T>
struct Gdn2Gradients {
  using A = Accumulate<T>;
  Tensor<T> dq, dk;
  Tensor<T> dv;
  Tensor<A> dg;      ///< shaped like g
  Tensor<T> db, dw;  ///< shaped like b and w
  Tensor<A> dinitial_state;
};

/// Forward. Throws ShapeError naming the argument, what was found and what is allowed. T is float or double.
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

/// One token for each of N sequences (T = 1, B = N): updates `state` [N, HV, K, V] in place and returns o
/// [N, 1, HV, V]. Inputs are shaped as for B = N, T = 1; initial_state and cu_seqlens must be empty.
template <class T>
Tensor<T> gdn_step(Runtime& runtime, const GdnInputs<T>& inputs, const Tensor<Accumulate<T>>& state,
                   double scale = 0.0);
template <class T>
Tensor<T> gdn2_step(Runtime& runtime, const Gdn2Inputs<T>& inputs, const Tensor<Accumulate<T>>& state,
                    double scale = 0.0);

}  // namespace deltaport::recurrence
