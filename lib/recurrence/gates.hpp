// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/activations.hpp"

namespace deltaport::recurrence {

/// The gate of a call before its activation.
template <class T>
struct RawGate {
  using A = Accumulate<T>;
  Tensor<T> raw;      // [B, T, heads] or [B, T, heads, channels]
  Tensor<A> A_log;    // [heads], or empty: 0
  Tensor<A> dt_bias;  // [heads(, channels)], or empty: 0
  int channels;       // of one head
};

/// g, shaped like raw.
template <class T>
Tensor<Accumulate<T>> gate_forward(Runtime& runtime, const Extents& extents, const RawGate<T>& gate,
                                   const Options& options);

template <class T>
struct GateGradients {
  Tensor<T> d_raw;                 // shaped like raw
  Tensor<Accumulate<T>> dA_log;    // shaped like A_log, or empty
  Tensor<Accumulate<T>> ddt_bias;  // shaped like dt_bias, or empty
};

/// Gradients of a gate from that of g. Those of the parameters are sums in float64, over blocks of tokens, then
/// over blocks and channels, in a fixed order. Rows that no sequence covers get zero and add nothing.
template <class T>
GateGradients<T> gate_backward(Runtime& runtime, const Extents& extents, const RawGate<T>& gate,
                               const Options& options, const Tensor<Accumulate<T>>& dg);

}  // namespace deltaport::recurrence
