// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "model/attention_scores.hpp"

namespace deltaport {
namespace {

/// What both kernels read.
template <class T>
struct AttentionInputs {
  AttentionShape shape;
  AttentionTaskList tasks;
  std::int64_t slots;
  const T* q;
  const T* k;
  const T* v;
  const T* logsumexp;
  const T* delta;
  const T* d_o;

  static constexpr std::size_t scratch_elements = 2 * attention_tile * attention_tile;

  KOKKOS_FORCEINLINE_FUNCTION std::int64_t kv_head_of(std::int64_t head) const {
    return head / (shape.heads / shape.kv_heads);
  }
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t query_offset(std::int64_t token, std::int64_t head) const {
    return (token * shape.heads + head) * shape.head_dim;
  }
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t key_offset(std::int64_t token, std::int64_t kv_head) const {
    return (token * shape.kv_heads + kv_head) * shape.head_dim;
  }
  KOKKOS_FORCEINLINE_FUNCTION std::int64_t value_offset(std::int64_t token, std::int64_t kv_head) const {
    return token * shape.value_stride + kv_head * shape.head_dim;
  }

  /// p in s and ds in dp for one pair of tiles, both [rows, columns] with rows of attention_tile elements.
  KOKKOS_FORCEINLINE_FUNCTION void score_tiles(const TeamMember& team, std::int64_t head, std::int64_t query,
                                               std::int64_t rows, std::int64_t key, std::int64_t columns,
                                               T* s, T* dp) const {
    const std::int64_t kv_head = kv_head_of(head), query_stride = shape.heads * shape.head_dim;
    const int m = static_cast<int>(rows), n = static_cast<int>(columns),
              depth = static_cast<int>(shape.head_dim);
    team_gemm<T>(team, TileTranspose::no, TileTranspose::yes, m, n, depth, static_cast<T>(shape.scale),
                 q + query_offset(query, head), query_stride, k + key_offset(key, kv_head),
                 shape.kv_heads * shape.head_dim, T(0), s, attention_tile);
    team_gemm<T>(team, TileTranspose::no, TileTranspose::yes, m, n, depth, T(1),
                 d_o + query_offset(query, head), query_stride, v + value_offset(key, kv_head),
                 shape.value_stride, T(0), dp, attention_tile);
    const std::int64_t row = head * shape.tokens + query;
    score_gradients(team, query, key, rows, columns, logsumexp + row, delta + row,
                    static_cast<T>(shape.scale), s, dp);
  }
};

/// dq of one tile of queries of one head: sum of ds k over the key tiles before it.
template <class T>
struct QueryGradient {
  AttentionInputs<T> in;
  T* dq;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const AttentionShape& shape = in.shape;
    const std::int64_t slot = in.slots - 1 - team.league_rank() / shape.heads;
    const AttentionTask task = in.tasks.task(slot, team.league_rank() % shape.heads);
    if (task.rows == 0) return;
    T* s = tile_scratch<T>(team, AttentionInputs<T>::scratch_elements);
    T* ds = s + attention_tile * attention_tile;
    const std::int64_t kv_head = in.kv_head_of(task.head);
    for (std::int64_t key = task.document_begin; key <= task.start; key += attention_tile) {
      const std::int64_t columns = key == task.start ? task.rows : attention_tile;
      in.score_tiles(team, task.head, task.start, task.rows, key, columns, s, ds);
      team_gemm<T>(team, TileTranspose::no, TileTranspose::no, static_cast<int>(task.rows),
                   static_cast<int>(shape.head_dim), static_cast<int>(columns), T(1), ds, attention_tile,
                   in.k + in.key_offset(key, kv_head), shape.kv_heads * shape.head_dim,
                   key == task.document_begin ? T(0) : T(1), dq + in.query_offset(task.start, task.head),
                   shape.heads * shape.head_dim);
    }
  }
};

/// dk and dv of one tile of keys of one key head: sums of ds^T q and p^T do over the heads of its group and
/// the query tiles from it on.
template <class T>
struct KeyValueGradient {
  AttentionInputs<T> in;
  T* dk;
  T* dv;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const AttentionShape& shape = in.shape;
    // Early tiles are seen by most queries and come first in slot order anyway.
    const AttentionTask task =
        in.tasks.task(team.league_rank() / shape.kv_heads, team.league_rank() % shape.kv_heads);
    if (task.rows == 0) return;
    T* p = tile_scratch<T>(team, AttentionInputs<T>::scratch_elements);
    T* ds = p + attention_tile * attention_tile;
    const std::int64_t group = shape.heads / shape.kv_heads;
    T beta = 0;
    for (std::int64_t head = task.head * group; head < (task.head + 1) * group; ++head)
      for (std::int64_t query = task.start; query < task.document_end; query += attention_tile) {
        const std::int64_t left = task.document_end - query;
        const std::int64_t rows = left < attention_tile ? left : attention_tile;
        in.score_tiles(team, head, query, rows, task.start, task.rows, p, ds);
        accumulate(team, task, head, query, rows, p, ds, beta);
        beta = 1;
      }
  }

  KOKKOS_FORCEINLINE_FUNCTION void accumulate(const TeamMember& team, const AttentionTask& task,
                                              std::int64_t head, std::int64_t query, std::int64_t rows,
                                              const T* p, const T* ds, T beta) const {
    const AttentionShape& shape = in.shape;
    const int m = static_cast<int>(task.rows), n = static_cast<int>(shape.head_dim),
              depth = static_cast<int>(rows);
    const std::int64_t query_stride = shape.heads * shape.head_dim;
    team_gemm<T>(team, TileTranspose::yes, TileTranspose::no, m, n, depth, T(1), p, attention_tile,
                 in.d_o + in.query_offset(query, head), query_stride, beta,
                 dv + in.value_offset(task.start, task.head), shape.value_stride);
    team_gemm<T>(team, TileTranspose::yes, TileTranspose::no, m, n, depth, T(1), ds, attention_tile,
                 in.q + in.query_offset(query, head), query_stride, beta,
                 dk + in.key_offset(task.start, task.head), shape.kv_heads * shape.head_dim);
  }
};

}  // namespace

template <class T>
void attention_backward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
                        const T* k, const T* v, const T* logsumexp, const T* delta, const T* d_o, T* dq,
                        T* dk, T* dv) {
  if (shape.tokens == 0) return;
  const AttentionTiles tiles = make_attention_tiles(runtime, sequences);
  const AttentionTaskList tasks{shape.heads, tiles.start.data(), sequences.cu_seqlens.data(),
                                sequences.sequence_of.data()};
  const AttentionInputs<T> in{shape, tasks, tiles.slots(), q, k, v, logsumexp, delta, d_o};
  const std::size_t scratch = AttentionInputs<T>::scratch_elements * sizeof(T) + 64;
  enqueue_kernel("deltaport: attention dq",
                 attention_policy(runtime.compute(), tiles.slots() * shape.heads, scratch),
                 QueryGradient<T>{in, dq});
  enqueue_kernel("deltaport: attention dk dv",
                 attention_policy(runtime.compute(), tiles.slots() * shape.kv_heads, scratch),
                 KeyValueGradient<T>{in, dk, dv});
}

template void attention_backward<float>(Runtime&, const AttentionShape&, const Sequences&, const float*,
                                        const float*, const float*, const float*, const float*, const float*,
                                        float*, float*, float*);
template void attention_backward<double>(Runtime&, const AttentionShape&, const Sequences&, const double*,
                                         const double*, const double*, const double*, const double*,
                                         const double*, double*, double*, double*);

}  // namespace deltaport
