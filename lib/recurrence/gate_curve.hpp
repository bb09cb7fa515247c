// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>

#include "deltaport/core/math.hpp"
#include "deltaport/recurrence/options.hpp"

namespace deltaport::recurrence {

/// x, infinities replaced by the largest finite numbers, so that products with zero are zero. NaN stays.
template <class A>
KOKKOS_INLINE_FUNCTION A limited(A x) {
  const A most = Kokkos::Experimental::finite_max_v<A>;
  return x > most ? most : x < -most ? -most : x;
}

/// One gate activation g(raw): its value and its derivatives, all finite wherever g is, and 0 or finite where g
/// has reached -inf (nothing passes such a gate, and 0 times anything must stay 0).
template <class A>
struct GateCurve {
  const A* A_log;    // [heads] or null: 0
  const A* dt_bias;  // [heads, channels] or null: 0
  int channels;      // of one head
  A lower_bound;
  GateActivation activation;

  struct Point {
    A g;
    A by_raw;    // dg / draw
    A by_A_log;  // dg / dA_log
  };

  /// `channel` counts through all heads.
  KOKKOS_INLINE_FUNCTION Point at(A raw, std::int64_t channel) const {
    const A x = dt_bias == nullptr ? raw : raw + dt_bias[channel];
    const A log = A_log == nullptr ? A(0) : A_log[channel / channels];
    return activation == GateActivation::softplus ? softplus_gate(x, log) : bounded_gate(x, log);
  }

 private:
  /// g = -exp(log) softplus(x)
  KOKKOS_INLINE_FUNCTION Point softplus_gate(A x, A log) const {
    // Far below zero softplus(x) = sigmoid(x) = exp(x) to the last place, and exp(log) alone might overflow.
    if (x < A(-40)) {
      const A g = -fast_exp(log + x);
      return {g, limited(g), limited(g)};
    }
    const A rate = limited(fast_exp(log));
    const A g = -rate * limited(softplus(x));
    return {g, -limited(rate * sigmoid(x)), limited(g)};
  }
  /// g = lower_bound sigmoid(exp(log) x)
  KOKKOS_INLINE_FUNCTION Point bounded_gate(A x, A log) const {
    const A rate = limited(fast_exp(log));
    const A u = rate * limited(x);
    const A s = sigmoid(u);
    const A slope = s * sigmoid(-u);
    return {lower_bound * s, limited(lower_bound * (slope * rate)), lower_bound * (slope * limited(u))};
  }
};

}  // namespace deltaport::recurrence
