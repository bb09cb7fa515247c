// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "model/attention_scores.hpp"

namespace deltaport {
namespace {

/// One tile of queries of one head against all keys before it. `sums`, shaped like o, holds the running sum;
/// it is o itself where that is not a half.
template <class T>
struct AttentionForward {
  using A = Accumulate<T>;
  AttentionShape shape;
  AttentionTaskList tasks;
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
    for (std::int64_t key = task.document_begin; key <= task.start; key += attention_tile)
      one_key_tile(team, task, key, s, top, sum, room);
    finish(team, task, top, sum);
  }

  KOKKOS_FORCEINLINE_FUNCTION std::int64_t output_row(const AttentionTask& task, std::int64_t r) const {
    return ((task.start + r) * shape.heads + task.head) * shape.head_dim;
  }

  KOKKOS_FORCEINLINE_FUNCTION void one_key_tile(const TeamMember& team, const AttentionTask& task,
                                                std::int64_t key, A* s, A* top, A* sum,
                                                const TileRoom<T>& room) const {
    const std::int64_t hd = shape.head_dim, kv_head = task.head / (shape.heads / shape.kv_heads);
    const std::int64_t columns = key == task.start ? task.rows : attention_tile;
    const int rows = static_cast<int>(task.rows), cols = static_cast<int>(columns),
              depth = static_cast<int>(hd);
    tile_product<T>(team, room, TileTranspose::no, TileTranspose::yes, rows, cols, depth,
                    static_cast<A>(shape.scale), q + (task.start * shape.heads + task.head) * hd,
                    shape.heads * hd, k + (key * shape.kv_heads + kv_head) * hd, shape.kv_heads * hd, A(0), s,
                    attention_tile);
    const bool first = key == task.document_begin;
    tile_rows(team, task.rows, [&](const std::int64_t r) {
      A* p = s + r * attention_tile;
      const std::int64_t limit = visible(task.start, key, r, columns);
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
                    attention_tile, v + key * shape.value_stride + kv_head * hd, shape.value_stride,
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

}  // namespace

template <class T>
void attention_forward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
                       const T* k, const T* v, T* o, Accumulate<T>* logsumexp) {
  using A = Accumulate<T>;
  if (shape.tokens == 0) return;
  const AttentionTiles tiles = make_attention_tiles(runtime, sequences);
  const AttentionTaskList tasks{shape.heads, tiles.start.data(), sequences.cu_seqlens.data(),
                                sequences.sequence_of.data()};
  Tensor<A> wide;
  A* sums;
  if constexpr (is_half<T>) {
    wide = runtime.allocate<A>("attention output sums", Shape{shape.tokens, shape.heads, shape.head_dim});
    sums = wide.data();
  } else {
    sums = o;
  }
  const AttentionForward<T> kernel{shape, tasks, tiles.slots(), q, k, v, sums, o, logsumexp};
  enqueue_kernel("deltaport: attention forward",
                 attention_policy(runtime.compute(), tiles.slots() * shape.heads,
                                  kernel.scratch_elements() * sizeof(A) + 64),
                 kernel);
}

#define DELTAPORT_INSTANTIATE(T)                                                                            \
  template void attention_forward<T>(Runtime&, const AttentionShape&, const Sequences&, const T*, const T*, \
                                     const T*, T*, Accumulate<T>*);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
