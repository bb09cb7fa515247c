// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/parallel.hpp"

namespace deltaport {

/// Sum of term(i) over i in [0, n) in a fixed order that host compilers can vectorise without reassociating:
/// sixteen running sums, folded pairwise at the end.
template <class R, class Term>
KOKKOS_FORCEINLINE_FUNCTION R lane_sum(std::int64_t n, const Term& term) {
  constexpr int lanes = 16;
  R partial[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) partial[lane] += term(i + lane);
  for (int lane = 0; i < n; ++i, ++lane) partial[lane] += term(i);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
  return partial[0];
}

/// The same sum shared by the vector lanes of one team thread; every lane gets the result.
template <class R, class Term>
KOKKOS_FORCEINLINE_FUNCTION R row_sum([[maybe_unused]] const TeamMember& team, std::int64_t n,
                                      const Term& term) {
  if constexpr (runs_on_host) {
    return lane_sum<R>(n, term);
  } else {
    R total = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team, n), [&](std::int64_t i, R& sum) { sum += term(i); }, total);
    return total;
  }
}

/// Calls body(i) for i in [0, n), split over the vector lanes of one team thread; a vectorisable loop on
/// hosts. The calls must not depend on each other.
template <class Body>
KOKKOS_FORCEINLINE_FUNCTION void row_for([[maybe_unused]] const TeamMember& team, std::int64_t n,
                                         const Body& body) {
  if constexpr (runs_on_host) {
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC ivdep
#endif
    for (std::int64_t i = 0; i < n; ++i) body(i);
  } else {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, n), [&](std::int64_t i) { body(i); });
  }
}

}  // namespace deltaport
