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

/// Largest of term(i) over i in [0, n), n >= 1, on the vector lanes of one team thread. NaN is passed over.
template <class R, class Term>
KOKKOS_FORCEINLINE_FUNCTION R row_max([[maybe_unused]] const TeamMember& team, std::int64_t n,
                                      const Term& term) {
  R best = term(0);
  if constexpr (runs_on_host) {
    constexpr int lanes = 16;
    R partial[lanes];
    for (int lane = 0; lane < lanes; ++lane) partial[lane] = best;
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
      for (int lane = 0; lane < lanes; ++lane) {
        const R value = term(i + lane);
        partial[lane] = value > partial[lane] ? value : partial[lane];
      }
    for (int lane = 0; i < n; ++i, ++lane) {
      const R value = term(i);
      partial[lane] = value > partial[lane] ? value : partial[lane];
    }
    for (int lane = 0; lane < lanes; ++lane) best = partial[lane] > best ? partial[lane] : best;
  } else {
    const R first = best;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team, n),
        [&](std::int64_t i, R& local) {
          const R value = term(i);
          local = value > local ? value : local;
        },
        Kokkos::Max<R>(best));
    best = best > first ? best : first;
  }
  return best;
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
