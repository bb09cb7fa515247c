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
  AttentionLayout layout;
  std::int64_t capacity, length;  // length counts the new token
  T scale;
  const T* q;
  const T* keys;
  const T* values;
  T* scores;  // [N, heads, length]
  T* o;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t hd = layout.head_dim, row = layout.kv_heads * hd;
    const std::int64_t n = team.league_rank() / layout.heads, h = team.league_rank() % layout.heads;
    const std::int64_t first = n * capacity * row + h / (layout.heads / layout.kv_heads) * hd;
    const T* query = q + team.league_rank() * hd;
    T* p = scores + team.league_rank() * length;
    const T factor = scale;
    for (std::int64_t t = 0; t < length; ++t) {
      const T* key = keys + first + t * row;
      const T dot = row_sum<T>(team, hd, [=](const std::int64_t i) { return query[i] * key[i]; });
      Kokkos::single(Kokkos::PerThread(team), [=]() { p[t] = dot * factor; });
    }
    team.team_barrier();
    const T top = row_max<T>(team, length, [=](const std::int64_t t) { return p[t]; });
    row_for(team, length, [=](const std::int64_t t) { p[t] = Kokkos::exp(p[t] - top); });
    team.team_barrier();
    const T inverse = T(1) / row_sum<T>(team, length, [=](const std::int64_t t) { return p[t]; });
    T* out = o + team.league_rank() * hd;
    const std::int64_t tokens = length;
    const T* value = values + first;
    row_for(team, hd, [=](const std::int64_t i) {
      T sum = 0;
      for (std::int64_t t = 0; t < tokens; ++t) sum += p[t] * value[t * row + i];
      out[i] = sum * inverse;
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
  const auto scores = runtime.allocate<T>("attention step scores", Shape{count * layout.heads, length});
  const T scale = T(1) / Kokkos::sqrt(static_cast<T>(layout.head_dim));
  for_each_row(runtime.compute(), "deltaport: attention step", count * layout.heads,
               AttendToState<T>{layout, state.capacity(), length, scale, q, state.keys.data(),
                                state.values.data(), scores.data(), o});
}

template void attend_to_state<float>(Runtime&, const AttentionLayout&, const AttentionState<float>&,
                                     const float*, const float*, const float*, float*);
template void attend_to_state<double>(Runtime&, const AttentionLayout&, const AttentionState<double>&,
                                      const double*, const double*, const double*, double*);

}  // namespace deltaport
