// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/math.hpp"
#include "deltaport/recurrence/options.hpp"

namespace deltaport::recurrence {

/// x, infinities replaced by the largest finite numbers, so that products with zero are zero. NaN stays.
template <class A>
KOKKOS_INLINE_FUNCTION A limited(A x) {
  const A most = Kokkos::Experimental::finite_max_v<A>;
  return x > most ? most : x < -most ? -most : x;
}

/// A gate at one point. The derivatives are finite wherever g is, and 0 or finite where g has reached -inf
/// (nothing passes such a gate, and 0 times anything must stay 0).
template <class A>
struct GatePoint {
  A g;
  A by_raw;    // dg / draw
  A by_A_log;  // dg / dA_log
};

/// One gate activation with its parameters per channel of all heads. Free of branches, so that loops over
/// channels vectorise.
template <class A, GateActivation activation>
struct GateCurve {
  const A* A_log;
  const A* dt_bias;
  A lower_bound;

  KOKKOS_INLINE_FUNCTION GatePoint<A> at(A raw, std::int64_t channel) const {
    const A x = raw + dt_bias[channel];
    const A log = A_log[channel];
    if constexpr (activation == GateActivation::softplus) {
      // g = -exp(log) softplus(x). Far below zero softplus(x) = sigmoid(x) = exp(x) to the last place, and
      // exp(log) alone might overflow.
      const bool is_far = x < A(-40);
      const A rate = limited(fast_exp(is_far ? log + x : log));
      const A g = -rate * (is_far ? A(1) : limited(softplus(x)));
      return {g, -limited(rate * (is_far ? A(1) : sigmoid(x))), limited(g)};
    } else {
      // g = lower_bound sigmoid(exp(log) x)
      const A rate = limited(fast_exp(log));
      const A u = rate * limited(x);
      const A s = sigmoid(u);
      const A slope = s * sigmoid(-u);
      return {lower_bound * s, limited(lower_bound * (slope * rate)), lower_bound * (slope * limited(u))};
    }
  }
};

}  // namespace deltaport::recurrence
