// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/reference/token.hpp"

namespace deltaport::recurrence::reference {

/// Tokens between two states that backward keeps while it recomputes.
inline constexpr int checkpoint_tokens = 64;

/// Token by token over one sequence and value head. `state` [slots, HV, K, V] holds the initial state and ends
/// as the final. Sequence n has slot n, or slots[n]; one without a slot only gets o = 0.
template <class T, class Gates>
struct Forward {
  using A = Accumulate<T>;
  Call<T, Gates> call;
  A* state;
  T* o;            // null: states only
  A* checkpoints;  // null, or the state before every checkpoint_tokens tokens: [blocks, HV, K, V]
  const std::int32_t* slots = nullptr;
  std::int64_t slot_count = 0;

  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const Extents& x = call.x;
    const std::int64_t sequence = team.league_rank() / x.value_heads;
    const int head = static_cast<int>(team.league_rank() % x.value_heads);
    const std::int64_t size = std::int64_t{x.key_dim} * x.value_dim;
    const std::int64_t place = slots == nullptr ? sequence : slots[sequence];
    const Span span = x.span(sequence);
    if (slots != nullptr && (place < 0 || place >= slot_count)) {
      clear(team, span, head);
      return;
    }
    A* s = state + (place * x.value_heads + head) * size;
    auto* r = static_cast<A*>(team.team_shmem().get_shmem(sizeof(A) * static_cast<std::size_t>(x.value_dim)));
    for (std::int64_t row = span.begin; row < span.end; ++row) {
      const std::int64_t token = row - span.begin;
      if (checkpoints != nullptr && token % checkpoint_tokens == 0) {
        const std::int64_t slot = x.block_slot(sequence, checkpoint_tokens) + token / checkpoint_tokens;
        A* kept = checkpoints + (slot * x.value_heads + head) * size;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, size), [=](std::int64_t i) { kept[i] = s[i]; });
        team.team_barrier();
      }
      call.decay_and_error(team, row, head, s, s, r);
      call.write(team, row, head, s, r);
      if (o != nullptr) call.read(team, row, head, s, r, o + call.value_at(row, head));
    }
  }

  KOKKOS_FUNCTION void clear(const TeamMember& team, const Span& span, int head) const {
    for (std::int64_t row = span.begin; row < span.end; ++row) {
      T* out = o + call.value_at(row, head);
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, call.x.value_dim), [=](int c) { out[c] = T(0); });
    }
  }
};

}  // namespace deltaport::recurrence::reference
