// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/math.hpp"
#include "deltaport/core/team_gemm.hpp"
#include "model/attention_core.hpp"
#include "model/row_sum.hpp"

namespace deltaport {

/// Dynamic, because the work of a tile grows with its distance from the start of its document.
using AttentionPolicy =
    Kokkos::TeamPolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>, Kokkos::Schedule<Kokkos::Dynamic>>;

/// Level 0 is shared memory on devices; host level 0 would be too small for two tiles.
inline constexpr int attention_scratch_level = runs_on_host ? 1 : 0;

inline AttentionPolicy attention_policy(const ExecutionSpace& exec, std::int64_t teams,
                                        std::size_t scratch_bytes) {
  AttentionPolicy policy(exec, static_cast<int>(teams), runs_on_host ? 1 : 4, runs_on_host ? 1 : 32);
  policy.set_scratch_size(attention_scratch_level, Kokkos::PerTeam(static_cast<int>(scratch_bytes)));
  return policy;
}

/// The team's scratch: `elements` values, 64-byte aligned.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T* tile_scratch(const TeamMember& team, std::size_t elements) {
  const int level = attention_scratch_level;  // Kokkos takes it by reference
  return static_cast<T*>(team.team_scratch(level).get_shmem_aligned(elements * sizeof(T), 64));
}

/// Calls body(r) for the rows of a tile, one thread of the team each.
template <class Body>
KOKKOS_FORCEINLINE_FUNCTION void tile_rows(const TeamMember& team, std::int64_t rows, const Body& body) {
  if constexpr (runs_on_host) {
    (void)team;
    for (std::int64_t r = 0; r < rows; ++r) body(r);
  } else {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows), [&](std::int64_t r) { body(r); });
  }
}

/// x[i] = exp(x[i] - shift).
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void shifted_exp(const TeamMember& team, std::int64_t n, T* x, T shift) {
  row_for(team, n, [=](const std::int64_t i) { x[i] = fast_exp(x[i] - shift); });
}

/// What one team works on: a tile of one document and one head. Valid when rows > 0.
struct AttentionTask {
  std::int64_t head = 0, start = 0, rows = 0, document_begin = 0, document_end = 0;
};

/// Pointers that find a task from a league rank.
struct AttentionTaskList {
  std::int64_t heads;
  const std::int32_t* tile_start;
  const std::int32_t* cu_seqlens;
  const std::int32_t* sequence_of;

  KOKKOS_FUNCTION AttentionTask task(std::int64_t slot, std::int64_t head) const {
    AttentionTask found;
    const std::int64_t start = tile_start[slot];
    if (start < 0) return found;
    const std::int64_t n = sequence_of[start];
    found.head = head;
    found.start = start;
    found.document_begin = cu_seqlens[n];
    found.document_end = cu_seqlens[n + 1];
    const std::int64_t left = found.document_end - start;
    found.rows = left < attention_tile ? left : attention_tile;
    return found;
  }
};

/// Keys that row r of a query tile may see in a key tile: all columns, or up to itself on the diagonal.
KOKKOS_FORCEINLINE_FUNCTION std::int64_t visible(std::int64_t query_start, std::int64_t key_start,
                                                 std::int64_t r, std::int64_t columns) {
  return query_start == key_start ? r + 1 : columns;
}

/// Probabilities exp(s - logsumexp[r]) in s, 0 beyond the causal limit; then ds = p (dp - delta[r]) scale in
/// dp.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void score_gradients(const TeamMember& team, std::int64_t query_start,
                                                 std::int64_t key_start, std::int64_t rows,
                                                 std::int64_t columns, const T* logsumexp, const T* delta,
                                                 T scale, T* s, T* dp) {
  tile_rows(team, rows, [&](const std::int64_t r) {
    T* p = s + r * attention_tile;
    T* d = dp + r * attention_tile;
    const std::int64_t limit = visible(query_start, key_start, r, columns);
    shifted_exp(team, limit, p, logsumexp[r]);
    const T offset = delta[r];
    row_for(team, limit, [=](const std::int64_t c) { d[c] = p[c] * (d[c] - offset) * scale; });
    row_for(team, columns - limit, [=](const std::int64_t c) { p[limit + c] = d[limit + c] = T(0); });
  });
}

}  // namespace deltaport
