// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "deltaport/core/runtime.hpp"
#include "recurrence/extents.hpp"
#include "recurrence/portable/team.hpp"

namespace deltaport::recurrence::portable {

/// One (sequence, value head) and the workspace its team may use.
struct Item {
  std::int64_t sequence;
  int head;
  std::int64_t worker;  // index of the workspace
};

/// Number of the calling thread in the host's execution space.
int host_thread_index();

/// How many (sequence, value head) items run at once, and so how many workspaces exist: the threads of a
/// host, or a bounded number of teams on a device, launched in waves.
struct Workers {
  std::int64_t items, count;
  Workers(const ExecutionSpace& exec, const Extents& x)
      : items(x.sequences * x.value_heads),
        count(runs_on_host ? exec.concurrency() : std::min<std::int64_t>(items, 1024)) {}
};

/// Item of a team in the wave that starts at item `first`.
KOKKOS_INLINE_FUNCTION Item item_of(const TeamMember& team, const Extents& x, std::int64_t first) {
  const std::int64_t item = first + team.league_rank();
  Item out{item / x.value_heads, static_cast<int>(item % x.value_heads), team.league_rank()};
  KOKKOS_IF_ON_HOST((out.worker = host_thread_index();))
  return out;
}

/// Runs kernel for every item; sets kernel.first per wave. Hosts hand out items dynamically: each item has
/// one owner and its own outputs, so results do not depend on who that is.
template <class Kernel>
void for_each_item(const ExecutionSpace& exec, const char* label, const Workers& workers, Kernel kernel) {
  if constexpr (runs_on_host) {
    using Policy = Kokkos::TeamPolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>,
                                      Kokkos::Schedule<Kokkos::Dynamic>>;
    kernel.first = 0;
    enqueue_kernel(label, Policy(exec, static_cast<int>(workers.items), 1, 1).set_chunk_size(1), kernel);
  } else {
    for (kernel.first = 0; kernel.first < workers.items; kernel.first += workers.count) {
      const auto teams = static_cast<int>(std::min(workers.count, workers.items - kernel.first));
      enqueue_kernel(label, TeamPolicy(exec, teams, 8, 32), kernel);
    }
  }
}

/// Where backward keeps one record per chunk. Hosts reuse a worker's records for its next item; devices have
/// one for every chunk of every head.
struct ChunkStore {
  std::int64_t record;      // elements
  std::int64_t per_worker;  // records of one worker (hosts)
  int chunk_size;

  KOKKOS_INLINE_FUNCTION std::int64_t offset(const Extents& x, const Item& item, std::int64_t chunk) const {
    std::int64_t index = (x.block_slot(item.sequence, chunk_size) + chunk) * x.value_heads + item.head;
    KOKKOS_IF_ON_HOST((index = item.worker * per_worker + chunk;))
    return index * record;
  }
  std::int64_t elements(const Extents& x, const Workers& workers) const {
    return record * (runs_on_host ? workers.count * per_worker : x.block_slots(chunk_size) * x.value_heads);
  }
};

/// Elements of a record that holds a state [K, V] and then, at a multiple of 16, v_new [C, V].
template <class A>
std::int64_t chunk_record(const Extents& x, int chunk_size) {
  Carver<A> record(nullptr);
  record.take(x.state_size());
  record.take(std::int64_t{chunk_size} * x.value_dim);
  return record.used;
}

/// Chunks of the longest sequence (hosts; a bound elsewhere, and where lengths change from replay to replay).
std::int64_t most_chunks(const Extents& x, int chunk_size);

}  // namespace deltaport::recurrence::portable
