// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/reference/gates.hpp"

namespace deltaport::recurrence::reference {

/// Pointers and gates of one call; `row` is a flat token, `head` a value head.
template <class T, class Gates>
struct Call {
  using A = Accumulate<T>;
  Extents x;
  const T *q, *k, *v;
  Gates gates;
  A scale;

  KOKKOS_INLINE_FUNCTION std::int64_t key_at(std::int64_t row, int head) const {
    return (row * x.key_heads + x.key_head(head)) * x.key_dim;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t value_at(std::int64_t row, int head) const {
    return (row * x.value_heads + head) * x.value_dim;
  }

  /// to = decay from, and r = write v - to^T (erase k). `to` and `from` may be the same.
  KOKKOS_INLINE_FUNCTION void decay_and_error(const TeamMember& team, std::int64_t row, int head,
                                              const A* from, A* to, A* r) const {
    const int columns = x.value_dim;
    const T* k_row = k + key_at(row, head);
    const T* v_row = v + value_at(row, head);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns),
                         [&](int c) { r[c] = gates.write(x, row, head, c) * static_cast<A>(v_row[c]); });
    for (int a = 0; a < x.key_dim; ++a) {
      const A decay = gates.decay(x, row, head, a);
      const A erase = gates.erase(x, row, head, a) * static_cast<A>(k_row[a]);
      const A* from_row = from + std::int64_t{a} * columns;
      A* to_row = to + std::int64_t{a} * columns;
      team.team_barrier();
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [=](int c) {
        to_row[c] = decay * from_row[c];
        r[c] -= to_row[c] * erase;
      });
    }
    team.team_barrier();
  }

  /// state += k r^T
  KOKKOS_INLINE_FUNCTION void write(const TeamMember& team, std::int64_t row, int head, A* state,
                                    const A* r) const {
    const int columns = x.value_dim;
    const T* k_row = k + key_at(row, head);
    for (int a = 0; a < x.key_dim; ++a) {
      const A factor = static_cast<A>(k_row[a]);
      A* state_row = state + std::int64_t{a} * columns;
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns),
                           [=](int c) { state_row[c] += factor * r[c]; });
    }
    team.team_barrier();
  }

  /// out = scale state^T q, through `sum` [V]
  KOKKOS_INLINE_FUNCTION void read(const TeamMember& team, std::int64_t row, int head, const A* state, A* sum,
                                   T* out) const {
    const int columns = x.value_dim;
    const T* q_row = q + key_at(row, head);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [=](int c) { sum[c] = A(0); });
    for (int a = 0; a < x.key_dim; ++a) {
      const A factor = scale * static_cast<A>(q_row[a]);
      const A* state_row = state + std::int64_t{a} * columns;
      team.team_barrier();
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns),
                           [=](int c) { sum[c] += factor * state_row[c]; });
    }
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns),
                         [=](int c) { out[c] = static_cast<T>(sum[c]); });
    team.team_barrier();
  }
};

template <class T, class Inputs>
auto make_call(const Extents& x, const Inputs& inputs, double scale) {
  using A = Accumulate<T>;
  return Call<T, decltype(gates_of(inputs))>{
      x, inputs.q.data(), inputs.k.data(), inputs.v.data(), gates_of(inputs), static_cast<A>(scale)};
}

/// Level-0 scratch of `count` rows of V accumulators.
template <class A>
std::size_t scratch_bytes(const Extents& x, int count) {
  return sizeof(A) * static_cast<std::size_t>(x.value_dim) * static_cast<std::size_t>(count) + 64;
}

/// One team per (sequence, value head), `items` of them.
inline TeamPolicy head_policy(const ExecutionSpace& exec, std::int64_t items, std::size_t scratch) {
  return TeamPolicy(exec, static_cast<int>(items), runs_on_host ? 1 : 4, runs_on_host ? 1 : 32)
      .set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(scratch)));
}

}  // namespace deltaport::recurrence::reference
