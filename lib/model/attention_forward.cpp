// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "model/attention_scores.hpp"

namespace deltaport {
namespace {

/// Tiles of tokens whose documents began earlier: their keys and values are in a cache, sequence n's from row
/// n * capacity on, and `lengths` says how many of them are older than this run.
struct CachedTaskList {
  AttentionTaskList run;
  const std::int32_t* lengths;
  std::int64_t capacity;

  KOKKOS_FUNCTION AttentionTask task(std::int64_t slot, std::int64_t head) const {
    AttentionTask found = run.task(slot, head);
    if (found.rows == 0) return found;
    const std::int64_t n = run.sequence_of[found.start];
    found.position += lengths[n];
    found.first_key = n * capacity;
    return found;
  }
};

/// One tile of queries of one head against all keys before it. `sums`, shaped like o, holds the running sum;
/// it is o itself where that is not a half.
template <class T, class Tasks>
struct AttentionForward {
  using A = Accumulate<T>;
  AttentionShape shape;
  Tasks tasks;
  std::int64_t slots;
  const T* q;
  const T* k;
  const T* v;
  A* sums;
  T* o;
  A* logsumexp;

  static constexpr std::size_t score_elements = attention_tile * attention_tile + 2 * attention_tile;
  KOKKOS_FORCEINLINE_FUNCTION std::size_t scratch_elements() const {
    return score_elements + tile_room_elements<T>(shape.head_dim);
  }

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    // Late tiles first: they take longest.
    const std::int64_t slot = slots - 1 - team.league_rank() / shape.heads;
    const AttentionTask task = tasks.task(slot, team.league_rank() % shape.heads);
    if (task.rows == 0) return;
    A* s = tile_scratch<A>(team, scratch_elements());
    A* top = s + attention_tile * attention_tile;  // running maximum of each row
    A* sum = top + attention_tile;                 // running sum of exp(score - top)
    const TileRoom<T> room = tile_room<T>(s + score_elements, shape.head_dim);
    tile_rows(team, task.rows, [&](const std::int64_t r) {
      top[r] = -Kokkos::Experimental::infinity_v<A>;
      sum[r] = A(0);
    });
    for (std::int64_t key = 0; key < task.position + task.rows; key += attention_tile)
      one_key_tile(team, task, key, s, top, sum, room);
    finish(team, task, top, sum);
  }

  KOKKOS_FORCEINLINE_FUNCTION std::int64_t output_row(const AttentionTask& task, std::int64_t r) const {
    return ((task.start + r) * shape.heads + task.head) * shape.head_dim;
  }

  /// `key` is the position of the tile's first key in its document.
  KOKKOS_FORCEINLINE_FUNCTION void one_key_tile(const TeamMember& team, const AttentionTask& task,
                                                std::int64_t key, A* s, A* top, A* sum,
                                                const TileRoom<T>& room) const {
    const std::int64_t hd = shape.head_dim, kv_head = task.head / (shape.heads / shape.kv_heads);
    const std::int64_t row = task.first_key + key, left = task.position + task.rows - key;
    const std::int64_t columns = left < attention_tile ? left : attention_tile;
    const int rows = static_cast<int>(task.rows), cols = static_cast<int>(columns),
              depth = static_cast<int>(hd);
    tile_product<T>(team, room, TileTranspose::no, TileTranspose::yes, rows, cols, depth,
                    static_cast<A>(shape.scale), q + (task.start * shape.heads + task.head) * hd,
                    shape.heads * hd, k + (row * shape.kv_heads + kv_head) * hd, shape.kv_heads * hd, A(0), s,
                    attention_tile);
    const bool first = key == 0;
    tile_rows(team, task.rows, [&](const std::int64_t r) {
      A* p = s + r * attention_tile;
      const std::int64_t seen = task.position + r + 1 - key;
      const std::int64_t limit = seen < columns ? seen : columns;
      if (limit <= 0) {  // a tile of keys that only later queries see
        row_for(team, columns, [=](const std::int64_t c) { p[c] = A(0); });
        return;
      }
      const A before = top[r];
      const A now = Kokkos::max(before, row_max<A>(team, limit, [=](const std::int64_t c) { return p[c]; }));
      shifted_exp(team, limit, p, now);
      row_for(team, columns - limit, [=](const std::int64_t c) { p[limit + c] = A(0); });
      const A added = row_sum<A>(team, limit, [=](const std::int64_t c) { return p[c]; });
      const A shrink = first ? A(0) : Kokkos::exp(before - now);
      Kokkos::single(Kokkos::PerThread(team), [=]() {
        sum[r] = sum[r] * shrink + added;
        top[r] = now;
      });
      if (first || shrink == A(1)) return;
      A* out = sums + output_row(task, r);
      row_for(team, hd, [=](const std::int64_t i) { out[i] *= shrink; });
    });
    tile_product<T>(team, room, TileTranspose::no, TileTranspose::no, rows, depth, cols, A(1), s,
                    attention_tile, v + row * shape.value_stride + kv_head * hd, shape.value_stride,
                    first ? A(0) : A(1), sums + output_row(task, 0), shape.heads * hd);
  }

  KOKKOS_FORCEINLINE_FUNCTION void finish(const TeamMember& team, const AttentionTask& task, const A* top,
                                          const A* sum) const {
    A* saved = logsumexp + task.head * shape.tokens + task.start;
    tile_rows(team, task.rows, [&](const std::int64_t r) {
      const A* from = sums + output_row(task, r);
      T* out = o + output_row(task, r);
      const A inverse = A(1) / sum[r];
      row_for(team, shape.head_dim,
              [=](const std::int64_t i) { out[i] = static_cast<T>(from[i] * inverse); });
      Kokkos::single(Kokkos::PerThread(team), [=]() { saved[r] = top[r] + Kokkos::log(sum[r]); });
    });
  }
};

template <class T, class Tasks>
void enqueue_forward(Runtime& runtime, const AttentionShape& shape, const Tasks& tasks, std::int64_t slots,
                     const T* q, const T* k, const T* v, T* o, Accumulate<T>* logsumexp) {
  using A = Accumulate<T>;
  Tensor<A> wide;
  A* sums;
  if constexpr (is_half<T>) {
    wide = runtime.allocate<A>("attention output sums", Shape{shape.tokens, shape.heads, shape.head_dim});
    sums = wide.data();
  } else {
    sums = o;
  }
  const AttentionForward<T, Tasks> kernel{shape, tasks, slots, q, k, v, sums, o, logsumexp};
  enqueue_kernel(
      "deltaport: attention forward",
      attention_policy(runtime.compute(), slots * shape.heads, kernel.scratch_elements() * sizeof(A) + 64),
      kernel);
}

}  // namespace

template <class T>
void attention_forward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
                       const T* k, const T* v, T* o, Accumulate<T>* logsumexp) {
  if (shape.tokens == 0) return;
  const AttentionTiles tiles = make_attention_tiles(runtime, sequences);
  const AttentionTaskList tasks{shape.heads, tiles.start.data(), sequences.cu_seqlens.data(),
                                sequences.sequence_of.data()};
  enqueue_forward<T>(runtime, shape, tasks, tiles.slots(), q, k, v, o, logsumexp);
}

template <class T>
void attention_cached(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences,
                      const std::int32_t* lengths, std::int64_t capacity, const T* q, const T* keys,
                      const T* values, T* o) {
  if (shape.tokens == 0) return;
  const AttentionTiles tiles = make_attention_tiles(runtime, sequences);
  const CachedTaskList tasks{
      {shape.heads, tiles.start.data(), sequences.cu_seqlens.data(), sequences.sequence_of.data()},
      lengths,
      capacity};
  const auto logsumexp =
      runtime.allocate<Accumulate<T>>("attention logsumexp", Shape{shape.heads, shape.tokens});
  enqueue_forward<T>(runtime, shape, tasks, tiles.slots(), q, keys, values, o, logsumexp.data());
}

#define DELTAPORT_INSTANTIATE(T)                                                                            \
  template void attention_forward<T>(Runtime&, const AttentionShape&, const Sequences&, const T*, const T*, \
                                     const T*, T*, Accumulate<T>*);                                         \
  template void attention_cached<T>(Runtime&, const AttentionShape&, const Sequences&, const std::int32_t*, \
                                    std::int64_t, const T*, const T*, const T*, T*);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
