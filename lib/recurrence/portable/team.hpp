// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/team_gemm.hpp"

/// Loops over small row-major matrices by one team. None of them waits: call barrier() before another
/// thread's elements are read. team_gemm waits before and after.
namespace deltaport::recurrence::portable {

inline constexpr auto as_is = TileTranspose::no;
inline constexpr auto transposed = TileTranspose::yes;

KOKKOS_INLINE_FUNCTION void barrier(const TeamMember& team) {
  team.team_barrier();
}

/// f(row, column)
template <class F>
KOKKOS_INLINE_FUNCTION void for_elements(const TeamMember& team, int rows, int columns, const F& f) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows), [&](int i) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, columns), [&](int j) { f(i, j); });
  });
}

/// f(i), spread over all lanes of the team.
template <class F>
KOKKOS_INLINE_FUNCTION void for_each(const TeamMember& team, int n, const F& f) {
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, n), [&](int i) { f(i); });
}

/// f(i), i split over the threads of the team; all lanes of a thread run it together.
template <class F>
KOKKOS_INLINE_FUNCTION void for_rows(const TeamMember& team, int n, const F& f) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), [&](int i) { f(i); });
}

/// f(j), j over the vector lanes of one thread. Inside for_rows.
template <class F>
KOKKOS_INLINE_FUNCTION void for_lanes(const TeamMember& team, int n, const F& f) {
  Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, n), [&](int j) { f(j); });
}

/// Sixteen partial sums, so that the compiler may use vectors without changing the order of additions.
template <class A, class X, class Y>
A host_dot(int n, const X* x, const Y* y) {
  constexpr int lanes = 16;
  A sum[lanes] = {};
  int i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int l = 0; l < lanes; ++l) sum[l] += x[i + l] * y[i + l];
  for (int l = 0; i + l < n; ++l) sum[l] += x[i + l] * y[i + l];
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sum[l] += sum[l + half];
  return sum[0];
}

/// Sum of x[i] y[i], the same value on all lanes of a thread, in one fixed order. Inside for_rows.
template <class A, class X, class Y>
KOKKOS_INLINE_FUNCTION A dot(const TeamMember& team, int n, const X* x, const Y* y) {
  A total = 0;
  KOKKOS_IF_ON_HOST((static_cast<void>(team); total = host_dot<A>(n, x, y);))
  KOKKOS_IF_ON_DEVICE(
      (Kokkos::parallel_reduce(
           Kokkos::ThreadVectorRange(team, n), [=](int i, A& sum) { sum += x[i] * y[i]; }, total);))
  return total;
}

/// f() by one lane of the team.
template <class F>
KOKKOS_INLINE_FUNCTION void once(const TeamMember& team, const F& f) {
  Kokkos::single(Kokkos::PerTeam(team), f);
}

/// Hands out parts of one team's workspace, 64-byte aligned. With a null base it only counts.
template <class A>
struct Carver {
  A* base;
  std::int64_t used = 0;
  KOKKOS_INLINE_FUNCTION explicit Carver(A* begin) : base(begin) {}
  KOKKOS_INLINE_FUNCTION A* take(std::int64_t elements) {
    A* part = base == nullptr ? nullptr : base + used;
    used += (elements + 15) / 16 * 16;
    return part;
  }
};

}  // namespace deltaport::recurrence::portable
