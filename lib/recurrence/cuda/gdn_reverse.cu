// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn_reverse.cuh"

#include "recurrence/cuda/factors.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/state.cuh"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

constexpr int scan_factors = 4;  // rows of Factor that the scan reads
constexpr int factor_bytes = scan_factors * 64 * 4;

template <int padded_k, int stages>
struct Layout {
  static constexpr int k = 0;
  static constexpr int q = k + padded_k * 128;
  static constexpr int x = q + padded_k * 128;
  static constexpr int r = x + padded_k * 128;
  static constexpr int d_o = r + panel_bytes;
  static constexpr int factors = d_o + panel_bytes;
  static constexpr int stage_bytes = factors + factor_bytes;
  static constexpr int state = stages * stage_bytes;  // rounded dS^T
  static constexpr int barriers = state + padded_k * 128;
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

  const GdnReverse& a;
  const TileMaps& maps;
  Place place;
  unsigned char* memory;
  Team team;

  __device__ int chunk(int turn) const { return place.chunks - 1 - turn; }
  __device__ std::uint32_t stage(int turn) const {
    return shared_address(memory) + (turn % stages) * L::stage_bytes;
  }
  __device__ const float* factors(int turn) const {
    return reinterpret_cast<const float*>(memory + (turn % stages) * L::stage_bytes + L::factors);
  }
  __device__ std::uint32_t state_tile() const { return shared_address(memory) + L::state; }
  __device__ Barriers<stages>& barriers() const {
    return *reinterpret_cast<Barriers<stages>*>(memory + L::barriers);
  }
  __device__ bool whole(int turn) const { return a.use_maps && place.rows(chunk(turn)) == chunk_rows; }

  __device__ void load(int turn, bool whole) const {
    const int thread = threadIdx.x % group_threads, i = chunk(turn);
    const std::int64_t chunk_head = (place.slot0 + i) * a.value_heads + place.head, row = place.row(i);
    const char* const x = static_cast<const char*>(a.x) + chunk_head * padded_k * 128;
    const char* const r = static_cast<const char*>(a.r) + chunk_head * panel_bytes;
    const float* const numbers = a.factors + chunk_head * factor_rows * 64;
    const TensorTiles k{a.k, a.key_heads, a.key_dim}, q{a.q, a.key_heads, a.key_dim};
    const std::uint32_t to = stage(turn);
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0) {
      constexpr int images = padded_k * 128 + panel_bytes + factor_bytes,
                    tiles = 2 * padded_k * 128 + panel_bytes;
      std::uint64_t* const barrier = barriers().ring.expect(turn, images + (whole ? tiles : 0));
      copy_bulk(to + L::factors, numbers, factor_bytes, barrier);
      team.copy(to + L::x, x, padded_k * 128, barrier);
      team.copy(to + L::r, r, panel_bytes, barrier);
      if (whole) {
        const int first = static_cast<int>(row);
        team.copy_tile<padded_k>(to + L::k, &maps.k, 0, place.key_head, first, barrier);
        team.copy_tile<padded_k>(to + L::q, &maps.q, 0, place.key_head, first, barrier);
      }
    }
    if (whole) return;
#else
    copy_image_async<padded_k * 128, group_threads>(to + L::x, x, thread);
    copy_image_async<panel_bytes, group_threads>(to + L::r, r, thread);
    if (thread < factor_bytes / 16) copy16_async(to + L::factors + 16 * thread, numbers + 4 * thread, true);
#endif
    k.load<padded_k, group_threads>(to + L::k, row, place.rows(i), place.key_head, 0, thread);
    q.load<padded_k, group_threads>(to + L::q, row, place.rows(i), place.key_head, 0, thread);
  }
  __device__ void load_gradient(int turn, bool whole) const {
    const int thread = threadIdx.x % group_threads, i = chunk(turn);
    const TensorTiles d_o{a.d_o, a.value_heads, a.value_dim};
#if defined(DELTAPORT_BULK_COPY)
    if (whole) {
      if (thread == 0) {
        d_o.load_bulk<64>(stage(turn) + L::d_o, maps.v, place.row(i), place.head, place.tile,
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
    const std::int64_t image =
        ((place.slot0 + chunk(turn)) * a.value_heads + place.head) * tiles + place.tile / 64;
    char* const to = static_cast<char*>(a.d_states) + image * padded_k * 128;
    barriers().state.wait_ready(turn);
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0 && turn >= place.quiet) {
      store_bulk(to, state_tile(), padded_k * 128);
      bulk_stores_wait_read();
    }
#else
    if (turn >= place.quiet) store_image<padded_k * 128, group_threads>(to, state_tile(), thread);
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

  /// Columns of a register operand times their factors.
  __device__ static void scale_operand(std::uint32_t (&to)[4][4], const std::uint32_t (&from)[4][4],
                                       const float* factors) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 factor =
            *reinterpret_cast<const float2*>(factors + 16 * s + 8 * half + 2 * (threadIdx.x % 4));
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const float2 x = unpack<E>(from[s][2 * half + part]);
          to[s][2 * half + part] = pack<E>(factor.x * x.x, factor.y * x.y);
        }
      }
    }
  }
  /// -(beta e) o dY^T, rounded.
  __device__ static void make_w(std::uint32_t (&w)[4][4], const float (&d_y)[32], const float* erase) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(erase + 8 * j + 2 * (threadIdx.x % 4));
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int d = 4 * j + 2 * part;
        w[j / 2][2 * (j % 2) + part] = pack<E>(-factor.x * d_y[d], -factor.y * d_y[d + 1]);
      }
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
      std::uint32_t gradient[4][4];
      barriers().ring.wait_full(turn, whole(turn));
      const float* const f = factors(turn);
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
      std::uint32_t query[4][4];
      scale_operand(query, gradient, f + factor_query * 64);
      const float gamma = exp2_fast(f[factor_decay * 64 + 63]);
      products_wait<0>();
      hold(d_y);
#pragma unroll
      for (int j = 0; j < n; ++j) state[j] *= gamma;
      hold(state);
      products_begin();
      multiply<E, Tile::by_columns>(state, query, stage(turn) + L::q, true);
      products_commit();
      make_w(gradient, d_y, f + factor_erase * 64);
      hold(state);
      products_begin();
      multiply<E, Tile::by_columns>(state, gradient, stage(turn) + L::k, true);
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
    gdn_reverse(const GdnReverse a, const __grid_constant__ TileMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  dependency_launch();
  if (a.segments.count > 1) dependency_wait();  // the preparation notes what decides over segments
  Place place;
  if (!find_place<Direction::reverse>(place, blockIdx.x, a.chunks, a.key_heads, a.value_heads, a.value_dim,
                                      a.segments)) {
    return;
  }
  const Block<E, padded_k, stages> block{a, maps, place, memory, Team::of_cluster()};
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
cudaError_t launch_gdn_reverse(const GdnReverse& a, const TileMaps& maps, cudaStream_t stream) {
  constexpr int stages = 3;
  const std::int64_t blocks =
      std::int64_t{(a.value_dim + 63) / 64} * a.value_heads * a.chunks.sequences * a.segments.count;
  return launch_clusters(team_of_value_tiles(padded_k, a.value_dim), gdn_reverse<E, padded_k, stages>,
                         dim3(static_cast<unsigned>(blocks)), 2 * group_threads,
                         Block<E, padded_k, stages>::bytes, Start::beside_previous, stream, a, maps);
}

template cudaError_t launch_gdn_reverse<Bf16, 64>(const GdnReverse&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_reverse<Bf16, 128>(const GdnReverse&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_reverse<Half, 64>(const GdnReverse&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_reverse<Half, 128>(const GdnReverse&, const TileMaps&, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
