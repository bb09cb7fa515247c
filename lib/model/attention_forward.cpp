// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/host_simd.hpp"
#include "model/attention_scores.hpp"

namespace deltaport {
namespace {

/// One tile of queries of one head against all keys before it. The output rows serve as the running sum.
template <class T>
struct AttentionForward {
  AttentionShape shape;
  AttentionTaskList tasks;
  std::int64_t slots;
  const T* q;
  const T* k;
  const T* v;
  T* o;
  T* logsumexp;

  static constexpr std::size_t scratch_elements = attention_tile * attention_tile + 2 * attention_tile;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    // Late tiles first: they take longest.
    const std::int64_t slot = slots - 1 - team.league_rank() / shape.heads;
    const AttentionTask task = tasks.task(slot, team.league_rank() % shape.heads);
    if (task.rows == 0) return;
    T* s = tile_scratch<T>(team, scratch_elements);
    T* top = s + attention_tile * attention_tile;  // running maximum of each row
    T* sum = top + attention_tile;                 // running sum of exp(score - top)
    tile_rows(team, task.rows, [&](const std::int64_t r) {
      top[r] = -Kokkos::Experimental::infinity_v<T>;
      sum[r] = T(0);
    });
    for (std::int64_t key = task.document_begin; key <= task.start; key += attention_tile)
      one_key_tile(team, task, key, s, top, sum);
    finish(team, task, top, sum);
  }

  KOKKOS_FORCEINLINE_FUNCTION T* output_row(const AttentionTask& task, std::int64_t r) const {
    return o + ((task.start + r) * shape.heads + task.head) * shape.head_dim;
  }

  KOKKOS_FORCEINLINE_FUNCTION void one_key_tile(const TeamMember& team, const AttentionTask& task,
                                                std::int64_t key, T* s, T* top, T* sum) const {
    const std::int64_t hd = shape.head_dim, kv_head = task.head / (shape.heads / shape.kv_heads);
    const std::int64_t columns = key == task.start ? task.rows : attention_tile;
    const int rows = static_cast<int>(task.rows), cols = static_cast<int>(columns),
              depth = static_cast<int>(hd);
    team_gemm<T>(team, TileTranspose::no, TileTranspose::yes, rows, cols, depth, static_cast<T>(shape.scale),
                 q + (task.start * shape.heads + task.head) * hd, shape.heads * hd,
                 k + (key * shape.kv_heads + kv_head) * hd, shape.kv_heads * hd, T(0), s, attention_tile);
    const bool first = key == task.document_begin;
    tile_rows(team, task.rows, [&](const std::int64_t r) {
      T* p = s + r * attention_tile;
      const std::int64_t limit = visible(task.start, key, r, columns);
      const T before = top[r];
      const T now = Kokkos::max(before, row_max<T>(team, limit, [=](const std::int64_t c) { return p[c]; }));
      shifted_exp(team, limit, p, now);
      row_for(team, columns - limit, [=](const std::int64_t c) { p[limit + c] = T(0); });
      const T added = row_sum<T>(team, limit, [=](const std::int64_t c) { return p[c]; });
      const T shrink = first ? T(0) : Kokkos::exp(before - now);
      Kokkos::single(Kokkos::PerThread(team), [=]() {
        sum[r] = sum[r] * shrink + added;
        top[r] = now;
      });
      if (first || shrink == T(1)) return;
      T* out = output_row(task, r);
      row_for(team, hd, [=](const std::int64_t i) { out[i] *= shrink; });
    });
    team_gemm<T>(team, TileTranspose::no, TileTranspose::no, rows, depth, cols, T(1), s, attention_tile,
                 v + key * shape.value_stride + kv_head * hd, shape.value_stride, first ? T(0) : T(1),
                 output_row(task, 0), shape.heads * hd);
  }

  KOKKOS_FORCEINLINE_FUNCTION void finish(const TeamMember& team, const AttentionTask& task, const T* top,
                                          const T* sum) const {
    T* saved = logsumexp + task.head * shape.tokens + task.start;
    tile_rows(team, task.rows, [&](const std::int64_t r) {
      T* out = output_row(task, r);
      const T inverse = T(1) / sum[r];
      row_for(team, shape.head_dim, [=](const std::int64_t i) { out[i] *= inverse; });
      Kokkos::single(Kokkos::PerThread(team), [=]() { saved[r] = top[r] + Kokkos::log(sum[r]); });
    });
  }
};

}  // namespace

template <class T>
void attention_forward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
                       const T* k, const T* v, T* o, T* logsumexp) {
  if (shape.tokens == 0) return;
  const AttentionTiles tiles = make_attention_tiles(runtime, sequences);
  const AttentionTaskList tasks{shape.heads, tiles.start.data(), sequences.cu_seqlens.data(),
                                sequences.sequence_of.data()};
  using Kernel = AttentionForward<T>;
  enqueue_kernel("deltaport: attention forward",
                 attention_policy(runtime.compute(), tiles.slots() * shape.heads,
                                  Kernel::scratch_elements * sizeof(T) + 64),
                 Kernel{shape, tasks, tiles.slots(), q, k, v, o, logsumexp});
}

template void attention_forward<float>(Runtime&, const AttentionShape&, const Sequences&, const float*,
                                       const float*, const float*, float*, float*);
template void attention_forward<double>(Runtime&, const AttentionShape&, const Sequences&, const double*,
                                        const double*, const double*, double*, double*);

}  // namespace deltaport
