// SPDX-License-Identifier: Apache-2.0
#include "model/attention_step.hpp"

#include <algorithm>

#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

/// One index is one element of the new keys (and values).
template <class T>
struct AppendToState {
  AttentionLayout layout;
  std::int64_t capacity;
  const std::int32_t* sequence_of;
  const std::int32_t* positions;
  const T* projections;
  const T* k;
  T* keys;
  T* values;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t row = layout.kv_heads * layout.head_dim;
    const std::int64_t t = index / row, i = index % row;
    const std::int64_t n = sequence_of != nullptr ? std::int64_t{sequence_of[t]} : t;
    const std::int64_t at = (n * capacity + positions[t]) * row + i;
    keys[at] = k[index];
    values[at] = projections[t * layout.width() + layout.value_offset(0) + i];
  }
};

/// One team is one head of one sequence; its probabilities go through a row of `scores`.
template <class T>
struct AttendToState {
  using A = Accumulate<T>;
  AttentionLayout layout;
  std::int64_t capacity;
  const std::int32_t* lengths;  // without the new token
  A scale;
  const T* q;
  const T* keys;
  const T* values;
  A* scores;  // [N, heads, score_stride]
  std::int64_t score_stride;
  T* o;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t hd = layout.head_dim, row = layout.kv_heads * hd;
    const std::int64_t n = team.league_rank() / layout.heads, h = team.league_rank() % layout.heads;
    const std::int64_t length = lengths[n] + std::int64_t{1};
    const std::int64_t first = n * capacity * row + h / (layout.heads / layout.kv_heads) * hd;
    const T* query = q + team.league_rank() * hd;
    A* p = scores + team.league_rank() * score_stride;
    const A factor = scale;
    for (std::int64_t t = 0; t < length; ++t) {
      const T* key = keys + first + t * row;
      const A dot =
          row_sum<A>(team, hd, [=](const std::int64_t i) { return widen(query[i]) * widen(key[i]); });
      Kokkos::single(Kokkos::PerThread(team), [=]() { p[t] = dot * factor; });
    }
    team.team_barrier();
    const A top = row_max<A>(team, length, [=](const std::int64_t t) { return p[t]; });
    row_for(team, length, [=](const std::int64_t t) { p[t] = Kokkos::exp(p[t] - top); });
    team.team_barrier();
    const A inverse = A(1) / row_sum<A>(team, length, [=](const std::int64_t t) { return p[t]; });
    weigh_values(team, length, p, values + first, row, inverse, o + team.league_rank() * hd);
  }

  /// out = inverse sum over t of p[t] value[t]. Hosts take some channels at a time, so that rows are read as
  /// they lie.
  KOKKOS_FORCEINLINE_FUNCTION void weigh_values(const TeamMember& team, std::int64_t length, const A* p,
                                                const T* value, std::int64_t row, A inverse, T* out) const {
    const std::int64_t hd = layout.head_dim;
    std::int64_t begin = 0;
    if constexpr (runs_on_host) {
      constexpr int lanes = 16;
      for (; begin + lanes <= hd; begin += lanes) {
        A sum[lanes] = {};
        for (std::int64_t t = 0; t < length; ++t)
          for (int lane = 0; lane < lanes; ++lane) sum[lane] += p[t] * widen(value[t * row + begin + lane]);
        for (int lane = 0; lane < lanes; ++lane) out[begin + lane] = static_cast<T>(sum[lane] * inverse);
      }
    }
    row_for(team, hd - begin, [=](const std::int64_t i) {
      A sum = 0;
      for (std::int64_t t = 0; t < length; ++t) sum += p[t] * widen(value[t * row + begin + i]);
      out[begin + i] = static_cast<T>(sum * inverse);
    });
  }
};

}  // namespace

template <class T>
void append_to_state(Runtime& runtime, const AttentionLayout& layout, const AttentionState<T>& state,
                     std::int64_t tokens, const std::int32_t* sequence_of, const std::int32_t* positions,
                     const T* projections, const T* k) {
  for_each_index(runtime.compute(), "deltaport: attention append", tokens * layout.kv_heads * layout.head_dim,
                 AppendToState<T>{layout, state.capacity(), sequence_of, positions, projections, k,
                                  state.keys.data(), state.values.data()});
}

template <class T>
void attend_to_state(Runtime& runtime, const AttentionLayout& layout, const AttentionState<T>& state,
                     const T* q, T* o) {
  using A = Accumulate<T>;
  const std::int64_t count = state.sequences();
  const std::int64_t longest = *std::max_element(state.seen.begin(), state.seen.end()) + 1;
  const auto scores = runtime.allocate<A>("attention step scores", Shape{count * layout.heads, longest});
  const A scale = A(1) / Kokkos::sqrt(static_cast<A>(layout.head_dim));
  for_each_row(runtime.compute(), "deltaport: attention step", count * layout.heads,
               AttendToState<T>{layout, state.capacity(), state.lengths.data(), scale, q, state.keys.data(),
                                state.values.data(), scores.data(), longest, o});
}

#define DELTAPORT_INSTANTIATE(T)                                                                             \
  template void append_to_state<T>(Runtime&, const AttentionLayout&, const AttentionState<T>&, std::int64_t, \
                                   const std::int32_t*, const std::int32_t*, const T*, const T*);            \
  template void attend_to_state<T>(Runtime&, const AttentionLayout&, const AttentionState<T>&, const T*, T*);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
