// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/tile.cuh"

/// Hand-over of shared memory between groups of four warps. Turn i of a ring uses place i % stages; a place is full
/// once its contents are there, empty once all readers are done with it.
namespace deltaport::recurrence::cuda {

constexpr int group_threads = 128;

/// Blocks that need the same tiles, at the same turns: neighbours in a cluster, of which each loads a part of every tile
/// for all of them. One block: nothing is shared.
struct Team {
  int blocks = 1;
  std::uint32_t rank = 0;

  __device__ static Team of_cluster() { return {cluster_blocks(), cluster_rank()}; }
  /// By all threads, to begin with.
  __device__ void meet() const {
    if (blocks == 1) {
      __syncthreads();
      return;
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
  /// By all threads, before the block ends: others may write into its memory until then.
  __device__ void part() const {
    if (blocks > 1) meet();
  }
#if defined(DELTAPORT_BULK_COPY)
  /// By one thread of every block: `bytes` bytes that all of them need.
  __device__ void copy(std::uint32_t shared, const void* global, int bytes, std::uint64_t* barrier) const {
    if (blocks == 1) return copy_bulk(shared, global, bytes, barrier);
    const int part = bytes / team_blocks, first = static_cast<int>(rank) * part;
    copy_bulk_to(shared + first, static_cast<const char*>(global) + first, part, barrier, everyone);
  }
  /// Likewise rows of `columns` columns: a panel from each block.
  template <int columns>
  __device__ void copy_tile(std::uint32_t tile, const void* map, int column, int head, int row,
                            std::uint64_t* barrier) const {
    if (columns == 64 * team_blocks && blocks > 1) {
      const int panel = static_cast<int>(rank);
      copy_tile_bulk_to(tile + panel * panel_bytes, map, column + 64 * panel, head, row, barrier, everyone);
      return;
    }
#pragma unroll
    for (int panel = 0; panel < columns / 64; ++panel)
      copy_tile_bulk(tile + panel * panel_bytes, map, column + 64 * panel, head, row, barrier);
  }
#endif
  static constexpr int team_blocks = 2;
  static constexpr std::uint16_t everyone = (1 << team_blocks) - 1;
};

/// Places filled by a group that loads from device memory.
template <int stages>
struct Ring {
  std::uint64_t full[stages], empty[stages];

  /// `readers`: warps of a block that call signal_empty in every turn.
  __device__ void initialise(int readers, const Team& team = {}) {
    for (int s = 0; s < stages; ++s) {
#if defined(DELTAPORT_BULK_COPY)
      barrier_init(&full[s], group_threads + 1);
#else
      barrier_init(&full[s], group_threads);
#endif
      barrier_init(&empty[s], readers * team.blocks);
    }
  }
  /// By readers: the data of turn i are there; for wgmma too, if the copy engine brought them all (`by_engine`).
  __device__ void wait_full(int i, bool by_engine) {
    barrier_wait(&full[i % stages], (i / stages) % 2);
    if (!by_engine) fence_async_proxy();
  }
  /// By the group that loads: the place of turn i is free, in all blocks of the team; so everything about turn i - stages
  /// is done.
  __device__ void wait_empty(int i) {
    barrier_wait(&empty[i % stages], (i / stages) % 2 ^ 1);
  }
  /// By all lanes of a reading warp.
  __device__ void signal_empty(int i, const Team& team = {}) {
    __syncwarp();
    const std::uint32_t lane = threadIdx.x % 32;
    if (team.blocks == 1) {
      if (lane == 0) barrier_arrive(&empty[i % stages]);
    } else if (lane < Team::team_blocks) {
      cluster_barrier_arrive(&empty[i % stages], lane);
    }
  }
  /// By every thread of the group that loads, after its last copy of turn i.
  __device__ void signal_loads(int i) {
    copies_arrive(&full[i % stages]);
  }
#if defined(DELTAPORT_BULK_COPY)
  /// By one thread, before its bulk copies of turn i, which are `bytes` in all and complete on `full`.
  __device__ std::uint64_t* expect(int i, int bytes) {
    barrier_arrive_expect(&full[i % stages], bytes);
    return &full[i % stages];
  }
#endif
};

/// One place that a group of four warps writes and another reads. A wait tells phases apart by their parity only, so
/// whoever waits must wait for every turn: two readers that take turns need a hand-over each.
struct Handover {
  std::uint64_t ready, free;

  __device__ void initialise() {
    barrier_init(&ready, group_threads / 32);
    barrier_init(&free, group_threads / 32);
  }
  __device__ void wait_ready(int i) { barrier_wait(&ready, i % 2); }
  /// What was written in turn i has been read.
  __device__ void wait_read(int i) { barrier_wait(&free, i % 2); }
  /// Turn i may be written: what was there before has been read.
  __device__ void wait_free(int i) { barrier_wait(&free, i % 2 ^ 1); }
  __device__ void signal_ready() { arrive(&ready); }
  __device__ void signal_free() { arrive(&free); }

 private:
  __device__ static void arrive(std::uint64_t* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }
};

}  // namespace deltaport::recurrence::cuda
