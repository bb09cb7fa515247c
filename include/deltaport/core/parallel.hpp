// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include "deltaport/core/enqueue.hpp"
#include "deltaport/core/tensor.hpp"

namespace deltaport {

/// Enqueues functor(i) for i in [0, n) with 64-bit indices.
template <class Functor>
void for_each_index(const ExecutionSpace& exec, const char* label, std::int64_t n, const Functor& functor) {
  if (n <= 0) return;
  enqueue_kernel(label, Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>(exec, 0, n),
                 functor);
}

using TeamPolicy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>>;
using TeamMember = TeamPolicy::member_type;

/// One team per row: `functor(team)` with league_rank() the row. A team is one thread on hosts and one warp
/// on devices; split the row with Kokkos::ThreadVectorRange(team, columns).
template <class Functor>
void for_each_row(const ExecutionSpace& exec, const char* label, std::int64_t rows, const Functor& functor) {
  if (rows <= 0) return;
  enqueue_kernel(label, TeamPolicy(exec, static_cast<int>(rows), 1, runs_on_host ? 1 : 32), functor);
}

}  // namespace deltaport
