// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

namespace deltaport {

/// 1 / (1 + exp(-x)), without overflow for any finite x.
template <class R>
KOKKOS_INLINE_FUNCTION R sigmoid(R x) {
  if (x >= R(0)) return R(1) / (R(1) + Kokkos::exp(-x));
  const R e = Kokkos::exp(x);
  return e / (R(1) + e);
}

/// x sigmoid(x)
template <class R>
KOKKOS_INLINE_FUNCTION R silu(R x) {
  return x * sigmoid(x);
}

/// d silu(x) / dx
template <class R>
KOKKOS_INLINE_FUNCTION R silu_derivative(R x) {
  const R s = sigmoid(x);
  return s * (R(1) + x * (R(1) - s));
}

/// log(1 + exp(x)), without overflow and without losing small results.
template <class R>
KOKKOS_INLINE_FUNCTION R softplus(R x) {
  return (x > R(0) ? x : R(0)) + Kokkos::log1p(Kokkos::exp(-Kokkos::abs(x)));
}

}  // namespace deltaport
