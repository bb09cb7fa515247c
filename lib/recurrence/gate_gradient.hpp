// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/activations.hpp"
#include "recurrence/gate_curve.hpp"

namespace deltaport::recurrence {

template <class T>
struct GateGradient {
  Tensor<T> d_raw;                 // shaped like raw
  Tensor<Accumulate<T>> dA_log;    // [heads]; empty when the curve has no A_log
  Tensor<Accumulate<T>> ddt_bias;  // [heads * channels]; empty when it has no dt_bias
};

/// Gradients of a gate's pre-activation raw [B, T, heads(, channels)] and of its parameters, from that of its
/// output. Parameters: sums in float64, over blocks of tokens, then over blocks and channels, in a fixed order.
/// Rows that no sequence covers get zero and add nothing.
template <class T>
GateGradient<T> gate_gradient(Runtime& runtime, const Extents& extents, const GateCurve<Accumulate<T>>& curve,
                              const Tensor<T>& raw, const Tensor<Accumulate<T>>& dg);

}  // namespace deltaport::recurrence
