// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2_reverse.cuh"

#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/state.cuh"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

template <int padded_k, int stages>
struct Layout {
  static constexpr int wide = padded_k * 128;
  static constexpr int erase = 0, query = wide, x = 2 * wide;
  static constexpr int r = x + wide;
  static constexpr int d_o = r + panel_bytes;
  static constexpr int gamma = d_o + panel_bytes;
  static constexpr int stage_bytes = (gamma + padded_k * 4 + 1023) / 1024 * 1024;
  static constexpr int state = stages * stage_bytes;  // rounded dS^T
  static constexpr int barriers = state + wide;
};
template <int stages>
struct Barriers {
  Ring<stages> ring;
  Handover state;
};

template <class E, int padded_k, int stages>
struct Block {
  using L = Layout<padded_k, stages>;
  static constexpr int n = padded_k / 2;  // registers of the state
  static constexpr int bytes = L::barriers + sizeof(Barriers<stages>);
  static_assert(bytes <= 227 * 1024);

  const Gdn2Reverse& a;
  const Gdn2ReverseMaps& maps;
  Place place;
  int gate_head;
  unsigned char* memory;
  Team team;

  __device__ int chunk(int turn) const { return place.chunks - 1 - turn; }
  __device__ std::uint32_t stage(int turn) const {
    return shared_address(memory) + (turn % stages) * L::stage_bytes;
  }
  __device__ std::uint32_t state_tile() const { return shared_address(memory) + L::state; }
  __device__ Barriers<stages>& barriers() const {
    return *reinterpret_cast<Barriers<stages>*>(memory + L::barriers);
  }
  __device__ bool whole(int turn) const { return a.use_maps && place.rows(chunk(turn)) == chunk_rows; }
  template <int bytes>
  __device__ const char* image(const void* images, int turn) const {
    const std::int64_t index = (place.slot0 + chunk(turn)) * a.gate_heads + gate_head;
    return static_cast<const char*>(images) + index * bytes;
  }

  /// All of a turn but dO.
  __device__ void load(int turn, bool whole) const {
    const int thread = threadIdx.x % group_threads;
    const char *const erase = image<L::wide>(a.erase, turn), *const query = image<L::wide>(a.query, turn),
                      *const x = image<L::wide>(a.x, turn), *const r = image<panel_bytes>(a.r, turn),
                      *const gamma = image<padded_k * 4>(a.gamma, turn);
    const std::uint32_t to = stage(turn);
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0) {
      constexpr int images = 3 * L::wide + panel_bytes + padded_k * 4;
      std::uint64_t* const barrier = barriers().ring.expect(turn, images + (whole ? panel_bytes : 0));
      copy_bulk(to + L::gamma, gamma, padded_k * 4, barrier);
      team.copy(to + L::x, x, L::wide, barrier);
      team.copy(to + L::r, r, panel_bytes, barrier);
      team.copy(to + L::query, query, L::wide, barrier);
      team.copy(to + L::erase, erase, L::wide, barrier);
    }
#else
    if (thread < padded_k / 4) copy16_async(to + L::gamma + 16 * thread, gamma + 16 * thread, true);
    copy_image_async<L::wide, group_threads>(to + L::x, x, thread);
    copy_image_async<panel_bytes, group_threads>(to + L::r, r, thread);
    copy_image_async<L::wide, group_threads>(to + L::query, query, thread);
    copy_image_async<L::wide, group_threads>(to + L::erase, erase, thread);
#endif
  }
  __device__ void load_gradient(int turn, bool whole) const {
    const int thread = threadIdx.x % group_threads, i = chunk(turn);
    const TensorTiles d_o{a.d_o, a.value_heads, a.value_dim};
#if defined(DELTAPORT_BULK_COPY)
    if (whole) {
      if (thread == 0) {
        d_o.load_bulk<64>(stage(turn) + L::d_o, maps.d_o, place.row(i), place.head, place.tile,
                          &barriers().ring.full[turn % stages]);
      }
      return;
    }
#endif
    d_o.load<64, group_threads>(stage(turn) + L::d_o, place.row(i), place.rows(i), place.head, place.tile,
                                thread);
  }
  /// The rounded dS^T of turn `turn`, as soon as it is written.
  __device__ void store_state(int turn) const {
    const int thread = threadIdx.x % group_threads;
    const std::int64_t tiles = (a.value_dim + 63) / 64;
    const std::int64_t index =
        ((place.slot0 + chunk(turn)) * a.value_heads + place.head) * tiles + place.tile / 64;
    char* const to = static_cast<char*>(a.d_states) + index * L::wide;
    barriers().state.wait_ready(turn);
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0 && turn >= place.quiet) {
      store_bulk(to, state_tile(), L::wide);
      bulk_stores_wait_read();
    }
#else
    if (turn >= place.quiet) store_image<L::wide, group_threads>(to, state_tile(), thread);
#endif
    named_barrier<1, group_threads>();
    barriers().state.signal_free();
  }
  __device__ void move() const {
    const int turns = place.chunks;
    for (int turn = 0; turn < turns + stages - 1; ++turn) {
      if (turn < turns) {
        barriers().ring.wait_empty(turn);
        load(turn, whole(turn));
        load_gradient(turn, whole(turn));
        barriers().ring.signal_loads(turn);
      }
      // The state of a turn is written at its beginning, when the loads of the next stages - 1 turns are on their way.
      const int written = turn - (stages - 1);
      if (written >= 0 && written < turns) store_state(written);
    }
  }

  __device__ void chain() const {
    const int warp = threadIdx.x / 32;
    const std::int64_t state_at = (place.sequence * a.value_heads + place.head) * a.key_dim * a.value_dim;
    float state[n];
    read_state<n>(state, a.d_final_state == nullptr || !place.last ? nullptr : a.d_final_state + state_at,
                  a.key_dim, a.value_dim, place.tile);
    std::uint32_t operand[n / 8][4];
    as_operand<E>(operand, state);
    for (int turn = 0; turn < place.chunks; ++turn) {
      float d_y[32];
      std::uint32_t gradient[4][4], minus[4][4];
      barriers().ring.wait_full(turn, whole(turn));
#pragma unroll
      for (int s = 0; s < 4; ++s) load_a_transposed(gradient[s], stage(turn) + L::d_o, 16 * s, 16 * warp);
      hold(d_y);
      products_begin();
      multiply<E, Tile::by_columns>(d_y, gradient, stage(turn) + L::r, false);
      multiply<E, Tile::by_rows>(d_y, operand, stage(turn) + L::x, true);
      products_commit();
      barriers().state.wait_free(turn);
      store_state_tile(state_tile(), operand);
      fence_async_proxy();  // the copy engine reads it
      barriers().state.signal_ready();
      products_wait<0>();
      hold(d_y);
      const float* const gamma =
          reinterpret_cast<const float*>(memory + (turn % stages) * L::stage_bytes + L::gamma);
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {
        const float2 factor = *reinterpret_cast<const float2*>(gamma + 8 * j + 2 * (threadIdx.x % 4));
        state[4 * j] *= factor.x, state[4 * j + 1] *= factor.y;
        state[4 * j + 2] *= factor.x, state[4 * j + 3] *= factor.y;
      }
      hold(state);
      products_begin();
      multiply<E, Tile::by_columns>(state, gradient, stage(turn) + L::query, true);
      products_commit();
      as_operand<E>(minus, d_y);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) minus[s][i] ^= 0x80008000u;  // of both elements
      }
      hold(state);
      products_begin();
      multiply<E, Tile::by_columns>(state, minus, stage(turn) + L::erase, true);
      products_commit();
      products_wait<0>();
      hold(state);
      barriers().ring.signal_empty(turn, team);
      as_operand<E>(operand, state);
    }
    if (a.d_initial_state != nullptr && place.first) {
      write_state<n>(state, a.d_initial_state + state_at, a.key_dim, a.value_dim, place.tile);
    }
  }
};

template <class E, int padded_k, int stages>
__global__ void __launch_bounds__(2 * group_threads, 1)
    gdn2_reverse(const Gdn2Reverse a, const __grid_constant__ Gdn2ReverseMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  dependency_launch();
  if (a.segments.count > 1) dependency_wait();  // the preparation notes what decides over segments
  Place place;
  if (!find_place<Direction::reverse>(place, blockIdx.x, a.chunks, a.gate_heads, a.value_heads, a.value_dim,
                                      a.segments)) {
    return;
  }
  const Block<E, padded_k, stages> block{a, maps, place, place.key_head, memory, Team::of_cluster()};
  if (threadIdx.x == 0) {
    block.barriers().ring.initialise(4, block.team);
    block.barriers().state.initialise();
  }
  block.team.meet();
  dependency_wait();
  // Uniform over the warp, which the compiler must know to leave products in flight.
  if (__shfl_sync(0xffffffffu, threadIdx.x / group_threads, 0) == 0) {
    block.chain();
  } else {
    block.move();
  }
  block.team.part();
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn2_reverse(const Gdn2Reverse& a, const Gdn2ReverseMaps& maps, cudaStream_t stream) {
  constexpr int stages = 3;
  const std::int64_t blocks =
      std::int64_t{(a.value_dim + 63) / 64} * a.value_heads * a.chunks.sequences * a.segments.count;
  return launch_clusters(team_of_value_tiles(padded_k, a.value_dim), gdn2_reverse<E, padded_k, stages>,
                         dim3(static_cast<unsigned>(blocks)), 2 * group_threads,
                         Block<E, padded_k, stages>::bytes, Start::beside_previous, stream, a, maps);
}

template cudaError_t launch_gdn2_reverse<Bf16, 64>(const Gdn2Reverse&, const Gdn2ReverseMaps&, cudaStream_t);
template cudaError_t launch_gdn2_reverse<Bf16, 128>(const Gdn2Reverse&, const Gdn2ReverseMaps&, cudaStream_t);
template cudaError_t launch_gdn2_reverse<Half, 64>(const Gdn2Reverse&, const Gdn2ReverseMaps&, cudaStream_t);
template cudaError_t launch_gdn2_reverse<Half, 128>(const Gdn2Reverse&, const Gdn2ReverseMaps&, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
