// SPDX-License-Identifier: Apache-2.0
#include "model/attention_step.hpp"

#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

/// One index is one element of the new keys (and values).
template <class T>
struct AppendToState {
  AttentionLayout layout;
  std::int64_t capacity, length;
  const T* projections;
  const T* k;
  T* keys;
  T* values;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t row = layout.kv_heads * layout.head_dim;
    const std::int64_t n = index / row, i = index % row;
    const std::int64_t at = (n * capacity + length) * row + i;
    keys[at] = k[index];
    values[at] = projections[n * layout.width() + layout.value_offset(0) + i];
  }
};

/// One team is one head of one sequence; its probabilities go through a row of `scores`.
template <class T>
struct AttendToState {
  using A = Accumulate<T>;
  AttentionLayout layout;
  std::int64_t capacity, length;  // length counts the new token
  A scale;
  const T* q;
  const T* keys;
  const T* values;
  A* scores;  // [N, heads, length]
  T* o;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t hd = layout.head_dim, row = layout.kv_heads * hd;
    const std::int64_t n = team.league_rank() / layout.heads, h = team.league_rank() % layout.heads;
    const std::int64_t first = n * capacity * row + h / (layout.heads / layout.kv_heads) * hd;
    const T* query = q + team.league_rank() * hd;
    A* p = scores + team.league_rank() * length;
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
    T* out = o + team.league_rank() * hd;
    const std::int64_t tokens = length;
    const T* value = values + first;
    row_for(team, hd, [=](const std::int64_t i) {
      A sum = 0;
      for (std::int64_t t = 0; t < tokens; ++t) sum += p[t] * widen(value[t * row + i]);
      out[i] = static_cast<T>(sum * inverse);
    });
  }
};

}  // namespace

template <class T>
void attend_to_state(Runtime& runtime, const AttentionLayout& layout, const AttentionState<T>& state,
                     const T* projections, const T* q, const T* k, T* o) {
  const std::int64_t count = state.sequences(), length = state.length + 1;
  for_each_index(runtime.compute(), "deltaport: attention append", count * layout.kv_heads * layout.head_dim,
                 AppendToState<T>{layout, state.capacity(), state.length, projections, k, state.keys.data(),
                                  state.values.data()});
  using A = Accumulate<T>;
  const auto scores = runtime.allocate<A>("attention step scores", Shape{count * layout.heads, length});
  const A scale = A(1) / Kokkos::sqrt(static_cast<A>(layout.head_dim));
  for_each_row(runtime.compute(), "deltaport: attention step", count * layout.heads,
               AttendToState<T>{layout, state.capacity(), length, scale, q, state.keys.data(),
                                state.values.data(), scores.data(), o});
}

#define DELTAPORT_INSTANTIATE(T)                                                                         \
  template void attend_to_state<T>(Runtime&, const AttentionLayout&, const AttentionState<T>&, const T*, \
                                   const T*, const T*, T*);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
