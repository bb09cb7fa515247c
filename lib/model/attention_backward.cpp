// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "model/attention_scores.hpp"

namespace deltaport {
namespace {

/// What both kernels read.
template <class T>
struct AttentionInputs {
  using A = Accumulate<T>;
  AttentionShape shape;
  AttentionTaskList tasks;
  std::int64_t slots;
  const T* q;
  const T* k;
  const T* v;
  const A* logsumexp;
  const A* delta;
  const T* d_o;

  static constexpr std::size_t score_elements = 2 * attention_tile * attention_tile;
  KOKKOS_FORCEINLINE_FUNCTION std::size_t scratch_elements() const {
    return score_elements + tile_room_elements<T>(shape.head_dim);
  }

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
                                               A* s, A* dp, const TileRoom<T>& room) const {
    const std::int64_t kv_head = kv_head_of(head), query_stride = shape.heads * shape.head_dim;
    const int m = static_cast<int>(rows), n = static_cast<int>(columns),
              depth = static_cast<int>(shape.head_dim);
    tile_product<T>(team, room, TileTranspose::no, TileTranspose::yes, m, n, depth,
                    static_cast<A>(shape.scale), q + query_offset(query, head), query_stride,
                    k + key_offset(key, kv_head), shape.kv_heads * shape.head_dim, A(0), s, attention_tile);
    tile_product<T>(team, room, TileTranspose::no, TileTranspose::yes, m, n, depth, A(1),
                    d_o + query_offset(query, head), query_stride, v + value_offset(key, kv_head),
                    shape.value_stride, A(0), dp, attention_tile);
    const std::int64_t row = head * shape.tokens + query;
    score_gradients(team, query, key, rows, columns, logsumexp + row, delta + row,
                    static_cast<A>(shape.scale), s, dp);
  }
};

/// dq of one tile of queries of one head: sum of ds k over the key tiles before it.
template <class T>
struct QueryGradient {
  using A = Accumulate<T>;
  AttentionInputs<T> in;
  A* dq;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const AttentionShape& shape = in.shape;
    const std::int64_t slot = in.slots - 1 - team.league_rank() / shape.heads;
    const AttentionTask task = in.tasks.task(slot, team.league_rank() % shape.heads);
    if (task.rows == 0) return;
    A* s = tile_scratch<A>(team, in.scratch_elements());
    A* ds = s + attention_tile * attention_tile;
    const TileRoom<T> room = tile_room<T>(s + in.score_elements, shape.head_dim);
    const std::int64_t kv_head = in.kv_head_of(task.head);
    for (std::int64_t key = task.document_begin; key <= task.start; key += attention_tile) {
      const std::int64_t columns = key == task.start ? task.rows : attention_tile;
      in.score_tiles(team, task.head, task.start, task.rows, key, columns, s, ds, room);
      tile_product<T>(team, room, TileTranspose::no, TileTranspose::no, static_cast<int>(task.rows),
                      static_cast<int>(shape.head_dim), static_cast<int>(columns), A(1), ds, attention_tile,
                      in.k + in.key_offset(key, kv_head), shape.kv_heads * shape.head_dim,
                      key == task.document_begin ? A(0) : A(1), dq + in.query_offset(task.start, task.head),
                      shape.heads * shape.head_dim);
    }
  }
};

/// dk and dv of one tile of keys of one key head: sums of ds^T q and p^T do over the heads of its group and
/// the query tiles from it on.
template <class T>
struct KeyValueGradient {
  using A = Accumulate<T>;
  AttentionInputs<T> in;
  A* dk;
  A* dv;
  std::int64_t dv_stride;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const AttentionShape& shape = in.shape;
    // Early tiles are seen by most queries and come first in slot order anyway.
    const AttentionTask task =
        in.tasks.task(team.league_rank() / shape.kv_heads, team.league_rank() % shape.kv_heads);
    if (task.rows == 0) return;
    A* p = tile_scratch<A>(team, in.scratch_elements());
    A* ds = p + attention_tile * attention_tile;
    const TileRoom<T> room = tile_room<T>(p + in.score_elements, shape.head_dim);
    const std::int64_t group = shape.heads / shape.kv_heads;
    A beta = 0;
    for (std::int64_t head = task.head * group; head < (task.head + 1) * group; ++head)
      for (std::int64_t query = task.start; query < task.document_end; query += attention_tile) {
        const std::int64_t left = task.document_end - query;
        const std::int64_t rows = left < attention_tile ? left : attention_tile;
        in.score_tiles(team, head, query, rows, task.start, task.rows, p, ds, room);
        accumulate(team, task, head, query, rows, p, ds, beta, room);
        beta = 1;
      }
  }

  KOKKOS_FORCEINLINE_FUNCTION void accumulate(const TeamMember& team, const AttentionTask& task,
                                              std::int64_t head, std::int64_t query, std::int64_t rows,
                                              const A* p, const A* ds, A beta,
                                              const TileRoom<T>& room) const {
    const AttentionShape& shape = in.shape;
    const int m = static_cast<int>(task.rows), n = static_cast<int>(shape.head_dim),
              depth = static_cast<int>(rows);
    const std::int64_t query_stride = shape.heads * shape.head_dim;
    tile_product<T>(team, room, TileTranspose::yes, TileTranspose::no, m, n, depth, A(1), p, attention_tile,
                    in.d_o + in.query_offset(query, head), query_stride, beta,
                    dv + task.start * dv_stride + task.head * shape.head_dim, dv_stride);
    tile_product<T>(team, room, TileTranspose::yes, TileTranspose::no, m, n, depth, A(1), ds, attention_tile,
                    in.q + in.query_offset(query, head), query_stride, beta,
                    dk + in.key_offset(task.start, task.head), shape.kv_heads * shape.head_dim);
  }
};

/// Rows of `width` dense elements into rows of `stride` elements.
template <class T>
struct RoundRows {
  const Accumulate<T>* from;
  std::int64_t width, stride;
  T* to;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    to[i / width * stride + i % width] = static_cast<T>(from[i]);
  }
};

}  // namespace

template <class T>
void attention_backward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
                        const T* k, const T* v, const Accumulate<T>* logsumexp, const Accumulate<T>* delta,
                        const T* d_o, Accumulate<T>* dq, Accumulate<T>* dk, T* dv) {
  using A = Accumulate<T>;
  if (shape.tokens == 0) return;
  const AttentionTiles tiles = make_attention_tiles(runtime, sequences);
  const AttentionTaskList tasks{shape.heads, tiles.start.data(), sequences.cu_seqlens.data(),
                                sequences.sequence_of.data()};
  const AttentionInputs<T> in{shape, tasks, tiles.slots(), q, k, v, logsumexp, delta, d_o};
  const std::int64_t value_width = shape.kv_heads * shape.head_dim;
  Tensor<A> wide;
  KeyValueGradient<T> keys{in, dk, nullptr, shape.value_stride};
  if constexpr (is_half<T>) {
    wide = runtime.allocate<A>("attention dv sums", Shape{shape.tokens, value_width});
    keys.dv = wide.data();
    keys.dv_stride = value_width;
  } else {
    keys.dv = dv;
  }
  const std::size_t scratch = in.scratch_elements() * sizeof(A) + 64;
  enqueue_kernel("deltaport: attention dq",
                 attention_policy(runtime.compute(), tiles.slots() * shape.heads, scratch),
                 QueryGradient<T>{in, dq});
  enqueue_kernel("deltaport: attention dk dv",
                 attention_policy(runtime.compute(), tiles.slots() * shape.kv_heads, scratch), keys);
  if constexpr (is_half<T>)
    for_each_index(runtime.compute(), "deltaport: attention dv", shape.tokens * value_width,
                   RoundRows<T>{wide.data(), value_width, shape.value_stride, dv});
}

#define DELTAPORT_INSTANTIATE(T)                                                                             \
  template void attention_backward<T>(Runtime&, const AttentionShape&, const Sequences&, const T*, const T*, \
                                      const T*, const Accumulate<T>*, const Accumulate<T>*, const T*,        \
                                      Accumulate<T>*, Accumulate<T>*, T*);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
