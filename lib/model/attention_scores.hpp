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

/// Host products take float32 tiles only: halves are widened into scratch, one tile of each operand.
template <class T>
inline constexpr bool widens_tiles = runs_on_host&& is_half<T>;

template <class T>
struct TileRoom {
  Accumulate<T>* left = nullptr;
  Accumulate<T>* right = nullptr;
};
/// Elements of Accumulate<T> that one team's TileRoom takes.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION std::size_t tile_room_elements(std::int64_t head_dim) {
  return widens_tiles<T> ? static_cast<std::size_t>(2 * attention_tile * head_dim) : 0;
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION TileRoom<T> tile_room(Accumulate<T>* scratch, std::int64_t head_dim) {
  if constexpr (widens_tiles<T>) return {scratch, scratch + attention_tile * head_dim};
  return {};
}

template <class X, class A>
KOKKOS_FORCEINLINE_FUNCTION const A* widened_tile(const X* x, std::int64_t& stride, std::int64_t rows,
                                                  std::int64_t columns, A* room) {
  if constexpr (std::is_same_v<X, A>) {
    (void)rows, (void)columns, (void)room;
    return x;
  } else {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) room[r * columns + c] = widen(x[r * stride + c]);
    stride = columns;
    return room;
  }
}

/// team_gemm of operands that are T or Accumulate<T>, none larger than a tile of whole heads.
template <class T, class TA, class TB>
KOKKOS_FORCEINLINE_FUNCTION void tile_product(const TeamMember& team,
                                              [[maybe_unused]] const TileRoom<T>& room, TileTranspose trans_a,
                                              TileTranspose trans_b, int m, int n, int k, Accumulate<T> alpha,
                                              const TA* a, std::int64_t lda, const TB* b, std::int64_t ldb,
                                              Accumulate<T> beta, Accumulate<T>* c, std::int64_t ldc) {
  if constexpr (widens_tiles<T>) {
    const bool at = trans_a == TileTranspose::yes, bt = trans_b == TileTranspose::yes;
    const auto* left = widened_tile(a, lda, at ? k : m, at ? m : k, room.left);
    const auto* right = widened_tile(b, ldb, bt ? n : k, bt ? k : n, room.right);
    team_gemm<Accumulate<T>>(team, trans_a, trans_b, m, n, k, alpha, left, lda, right, ldb, beta, c, ldc);
  } else {
    team_gemm<Accumulate<T>>(team, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
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
  std::int64_t position = 0;   ///< of the tile's first query in its document
  std::int64_t first_key = 0;  ///< row of the document's first key
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
    found.position = start - found.document_begin;
    found.first_key = found.document_begin;
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
