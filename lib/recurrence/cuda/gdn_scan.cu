// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/factors.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/scan.cuh"
#include "recurrence/cuda/state.cuh"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

constexpr int scan_factors = 4;  // rows of Factor that the scan reads
constexpr int factor_bytes = scan_factors * 64 * 4;

/// What leaves a turn: the output, or the state before the chunk (for backward; needs no Q and no R).
enum class Result { output, state };

template <int padded_k, Result result>
struct Stage {
  static constexpr bool output = result == Result::output;
  static constexpr int k = 0;
  static constexpr int x = k + padded_k * 128;
  static constexpr int v = x + padded_k * 128;  // later the output
  static constexpr int q = v + panel_bytes;
  static constexpr int r = q + (output ? padded_k * 128 : 0);
  static constexpr int factors = r + (output ? panel_bytes : 0);
  static constexpr int bytes = factors + factor_bytes;
};
template <int padded_k, Result result, int stages>
struct Layout {
  static constexpr int state = stages * Stage<padded_k, result>::bytes;  // rounded S^T; two for Result::state
  static constexpr int y = state + (result == Result::state ? 2 : 1) * padded_k * 128;
  static constexpr int barriers = y + (result == Result::state ? 0 : panel_bytes);
};
template <int stages>
struct Barriers {
  Ring<stages> ring;
  Handover state[2], y[2];  // Result::output: one for each group of readers
};

template <class E, int padded_k, Result result, int stages>
struct Block {
  using S = Stage<padded_k, result>;
  using L = Layout<padded_k, result, stages>;
  static constexpr int n = padded_k / 2;             // registers of the state
  static constexpr int outputs = S::output ? 2 : 0;  // groups that make the output, turn about
  static constexpr int groups = 2 + outputs;
  static constexpr int bytes = L::barriers + sizeof(Barriers<stages>);

  const Scan& a;
  const TileMaps& maps;
  Place place;
  unsigned char* memory;
  Team team;

  __device__ std::uint32_t stage(int i) const { return shared_address(memory) + (i % stages) * S::bytes; }
  __device__ const float* factors(int i) const {
    return reinterpret_cast<const float*>(memory + (i % stages) * S::bytes + S::factors);
  }
  __device__ std::uint32_t state_tile(int i) const {
    return shared_address(memory) + L::state + (S::output ? 0 : i % 2) * padded_k * 128;
  }
  __device__ std::uint32_t y_tile() const { return shared_address(memory) + L::y; }
  __device__ Barriers<stages>& barriers() const {
    return *reinterpret_cast<Barriers<stages>*>(memory + L::barriers);
  }
  __device__ Handover& state_handover(int i) const { return barriers().state[S::output ? 0 : i % 2]; }
  __device__ static int state_turn(int i) { return S::output ? i : i / 2; }

  /// Chunks of 64 rows go by the copy engine.
  __device__ bool whole(int i) const { return a.use_maps && place.rows(i) == chunk_rows; }

  /// Starts the copies of turn i, but for v.
  __device__ void load(int i, bool whole) const {
    const int thread = threadIdx.x % group_threads;
    const std::int64_t chunk_head = (place.slot0 + i) * a.value_heads + place.head, row = place.row(i);
    const char* const x = static_cast<const char*>(a.x) + chunk_head * padded_k * 128;
    const char* const r = static_cast<const char*>(a.r) + chunk_head * panel_bytes;
    const float* const numbers = a.factors + chunk_head * factor_rows * 64;
    const TensorTiles k{a.k, a.key_heads, a.key_dim}, q{a.q, a.key_heads, a.key_dim};
    const std::uint32_t to = stage(i);
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0) {
      constexpr int images = padded_k * 128 + factor_bytes + (S::output ? panel_bytes : 0);
      constexpr int tiles = padded_k * 128 * (S::output ? 2 : 1) + panel_bytes;
      std::uint64_t* const barrier = barriers().ring.expect(i, images + (whole ? tiles : 0));
      if (whole) {
        const int first = static_cast<int>(row);
        team.copy_tile<padded_k>(to + S::k, &maps.k, 0, place.key_head, first, barrier);
        if constexpr (S::output)
          team.copy_tile<padded_k>(to + S::q, &maps.q, 0, place.key_head, first, barrier);
      }
      copy_bulk(to + S::factors, numbers, factor_bytes, barrier);
      team.copy(to + S::x, x, padded_k * 128, barrier);
      if constexpr (S::output) team.copy(to + S::r, r, panel_bytes, barrier);
    }
    if (whole) return;
#else
    copy_image_async<padded_k * 128, group_threads>(to + S::x, x, thread);
    if (thread < factor_bytes / 16) copy16_async(to + S::factors + 16 * thread, numbers + 4 * thread, true);
    if constexpr (S::output) copy_image_async<panel_bytes, group_threads>(to + S::r, r, thread);
#endif
    k.load<padded_k, group_threads>(to + S::k, row, place.rows(i), place.key_head, 0, thread);
    if constexpr (S::output) {
      q.load<padded_k, group_threads>(to + S::q, row, place.rows(i), place.key_head, 0, thread);
    }
  }
  /// v of turn i, whose place held the output of an earlier turn.
  __device__ void load_values(int i, bool whole) const {
    const int thread = threadIdx.x % group_threads;
    const TensorTiles v{a.v, a.value_heads, a.value_dim};
#if defined(DELTAPORT_BULK_COPY)
    if (whole) {
      if (thread == 0) {
        v.load_bulk<64>(stage(i) + S::v, maps.v, place.row(i), place.head, place.tile,
                        &barriers().ring.full[i % stages]);
      }
      return;
    }
#endif
    v.load<64, group_threads>(stage(i) + S::v, place.row(i), place.rows(i), place.head, place.tile, thread);
  }

  /// The result of turn i from shared memory to its place; its shared memory is free afterwards.
  __device__ void store(int i, bool whole) const {
    const int thread = threadIdx.x % group_threads;
    if (i < place.quiet) {
      // nothing to keep
    } else if constexpr (S::output) {
      store_output(i, whole, thread);
    } else {
      const std::int64_t tiles = (a.value_dim + 63) / 64;
      const std::int64_t image = ((place.slot0 + i) * a.value_heads + place.head) * tiles + place.tile / 64;
      char* const to = static_cast<char*>(a.states) + image * padded_k * 128;
#if defined(DELTAPORT_BULK_COPY)
      if (thread == 0) {
        store_bulk(to, state_tile(i), padded_k * 128);
        bulk_stores_wait_read();
      }
#else
      store_image<padded_k * 128, group_threads>(to, state_tile(i), thread);
#endif
    }
    named_barrier<1, group_threads>();
    if constexpr (!S::output) state_handover(i).signal_free();
  }
  __device__ void store_output(int i, bool whole, int thread) const {
    const std::uint32_t tile = stage(i) + S::v;
#if defined(DELTAPORT_BULK_COPY)
    if (whole) {
      if (thread == 0) {
        store_tile_bulk(&maps.o, place.tile, place.head, static_cast<int>(place.row(i)), tile);
        bulk_stores_wait_read();
      }
      return;
    }
#endif
    const TensorTiles o{a.o, a.value_heads, a.value_dim};
    o.store<64, group_threads>(tile, place.row(i), place.rows(i), place.head, place.tile, thread);
  }

  /// The last group's part: everything between device and shared memory.
  __device__ void move() const {
    for (int i = 0; i < place.chunks + stages; ++i) {
      if (i >= place.chunks && i < stages) continue;
      barriers().ring.wait_empty(i);
      if (i < place.chunks) load(i, whole(i));
      if (i >= stages) store(i - stages, whole(i - stages));
      if (i < place.chunks) {
        load_values(i, whole(i));
        barriers().ring.signal_loads(i);
      }
    }
  }

  /// beta o v^T, in the layout of S^T K^T.
  __device__ void scaled_values(float (&value)[32], int i) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* beta = factors(i) + factor_beta * 64;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t v[4];
      load_a_transposed(v, stage(i) + S::v, 16 * s, 16 * warp);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float2 factor =
            *reinterpret_cast<const float2*>(beta + 16 * s + 8 * (part / 2) + 2 * (lane % 4));
        const float2 x = unpack<E>(v[part]);
        value[8 * s + 2 * part] = factor.x * x.x;
        value[8 * s + 2 * part + 1] = factor.y * x.y;
      }
    }
  }
  /// Y^T = beta o v^T - erase o (S^T K^T), rounded.
  __device__ static void make_y(std::uint32_t (&y)[4][4], const float (&value)[32],
                                const float (&product)[32], const float2 (&erase)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int d = 4 * j + 2 * part;
        y[j / 2][2 * (j % 2) + part] =
            pack<E>(value[d] - erase[j].x * product[d], value[d + 1] - erase[j].y * product[d + 1]);
      }
    }
  }

  /// The serial chain, by the first group: S^T K^T, Y, the next state.
  __device__ void chain() const {
    const int warp = threadIdx.x / 32;
    const std::int64_t state_at = (place.sequence * a.value_heads + place.head) * a.key_dim * a.value_dim;
    float state[n];
    read_state<n>(state, a.initial_state == nullptr || !place.first ? nullptr : a.initial_state + state_at,
                  a.key_dim, a.value_dim, place.tile);
    std::uint32_t operand[n / 8][4];
    as_operand<E>(operand, state);
    if (place.chunks > 0) barriers().ring.wait_full(0, whole(0));
    for (int i = 0; i < place.chunks; ++i) {
      float product[32], value[32];
      float2 erase[8];
      hold(product);
      products_begin();
      multiply<E, Tile::by_rows>(product, operand, stage(i) + S::k, false);
      products_commit();
      scaled_values(value, i);
      const float* const numbers = factors(i);
      const float gamma = exp2_fast(numbers[factor_decay * 64 + 63]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        erase[j] =
            *reinterpret_cast<const float2*>(numbers + factor_erase * 64 + 8 * j + 2 * (threadIdx.x % 4));
      }
      products_wait<0>();
      hold(product);
      std::uint32_t y[4][4];
      make_y(y, value, product, erase);
#pragma unroll
      for (int j = 0; j < n; ++j) state[j] *= gamma;  // not earlier: the compiler would wait for the product
      hold(state);
      products_begin();
      multiply<E, Tile::by_columns>(state, y, stage(i) + S::x, true);
      products_commit();
      // While that runs: hand over this turn's rounded state and Y, and look for the next turn's data.
      if constexpr (S::output) {
        const int reader = i % outputs;
        if (i > 0)
          barriers().y[(i - 1) % outputs].wait_read((i - 1) / outputs);  // the state is read before Y
        store_state_tile(state_tile(i), operand);
        barriers().state[reader].signal_ready();
#pragma unroll
        for (int s = 0; s < 4; ++s) store_a(y_tile(), 16 * warp, 16 * s, y[s]);
        barriers().y[reader].signal_ready();
      } else {
        state_handover(i).wait_free(state_turn(i));
        store_state_tile(state_tile(i), operand);
        fence_async_proxy();  // the copy engine reads it
      }
      if (i + 1 < place.chunks) barriers().ring.wait_full(i + 1, whole(i + 1));
      products_wait<0>();
      hold(state);
      barriers().ring.signal_empty(i, team);
      as_operand<E>(operand, state);
    }
    if (a.final_state != nullptr && place.last) {
      write_state<n>(state, a.final_state + state_at, a.key_dim, a.value_dim, place.tile);
    }
  }

  /// o^T = query o (S^T Q^T) + Y^T R^T off the chain: turns first, first + outputs, ...
  __device__ void output(int first) const {
    const int warp = threadIdx.x / 32 % 4;
    for (int i = first; i < place.chunks; i += outputs) {
      float out[32];
      std::uint32_t operand[padded_k / 16][4], y[4][4];
      // The chain signals after it has waited for the ring, so the ring's phase is the right one from here.
      barriers().state[first].wait_ready(i / outputs);
      barriers().ring.wait_full(i, whole(i));
#pragma unroll
      for (int s = 0; s < padded_k / 16; ++s) load_a(operand[s], state_tile(0), 16 * warp, 16 * s);
      hold(out);
      products_begin();
      multiply<E, Tile::by_rows>(out, operand, stage(i) + S::q, false);
      products_commit();
      products_wait<0>();
      hold(out);
      const float* query = factors(i) + factor_query * 64 + 2 * (threadIdx.x % 4);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 factor = *reinterpret_cast<const float2*>(query + 8 * j);
        out[4 * j] *= factor.x, out[4 * j + 1] *= factor.y;
        out[4 * j + 2] *= factor.x, out[4 * j + 3] *= factor.y;
      }
      barriers().y[first].wait_ready(i / outputs);
#pragma unroll
      for (int s = 0; s < 4; ++s) load_a(y[s], y_tile(), 16 * warp, 16 * s);
      barriers().y[first].signal_free();
      hold(out);
      products_begin();
      multiply<E, Tile::by_rows>(out, y, stage(i) + S::r, true);
      products_commit();
      products_wait<0>();
      hold(out);
      as_operand<E>(y, out);
#pragma unroll
      for (int s = 0; s < 4; ++s) store_a_transposed(stage(i) + S::v, 16 * s, 16 * warp, y[s]);
      fence_async_proxy();
      barriers().ring.signal_empty(i, team);
    }
  }
};

template <class E, int padded_k, Result result, int stages>
__global__ void __launch_bounds__(Block<E, padded_k, result, stages>::groups* group_threads, 1)
    gdn_scan(const Scan a, const __grid_constant__ TileMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using B = Block<E, padded_k, result, stages>;
  dependency_launch();
  if (a.segments.count > 1) dependency_wait();  // the preparation notes what decides over segments
  Place place;
  if (!find_place<Direction::forward>(place, blockIdx.x, a.chunks, a.key_heads, a.value_heads, a.value_dim,
                                      a.segments)) {
    return;
  }
  const B block{a, maps, place, memory, Team::of_cluster()};
  if (threadIdx.x == 0) {
    block.barriers().ring.initialise(B::outputs > 0 ? 8 : 4, block.team);
    for (Handover& handover : block.barriers().state) handover.initialise();
    for (Handover& handover : block.barriers().y) handover.initialise();
  }
  block.team.meet();
  dependency_wait();
  // Uniform over the warp, which the compiler must know to leave products in flight.
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / group_threads, 0);
  if (group == 0) {
    if constexpr (B::outputs > 0) registers_take<200>();
    block.chain();
  } else if (group == B::groups - 1) {
    if constexpr (B::outputs > 0) registers_give<88>();
    block.move();
  } else {
    if constexpr (B::outputs > 0) {
      registers_give<112>();
      block.output(group - 1);
    }
  }
  block.team.part();
}

template <class E, int padded_k, Result result, int stages>
cudaError_t launch_result(const Scan& a, const TileMaps& maps, Start start, cudaStream_t stream) {
  using B = Block<E, padded_k, result, stages>;
  const std::int64_t tiles = (a.value_dim + 63) / 64;
  const std::int64_t blocks = tiles * a.value_heads * a.chunks.sequences * a.segments.count;
  return launch_clusters(team_of_value_tiles(padded_k, a.value_dim), gdn_scan<E, padded_k, result, stages>,
                         dim3(static_cast<unsigned>(blocks)), B::groups * group_threads, B::bytes, start,
                         stream, a, maps);
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn_scan(const Scan& a, const TileMaps& maps, Start start, cudaStream_t stream) {
  return a.o != nullptr ? launch_result<E, padded_k, Result::output, 3>(a, maps, start, stream)
                        : launch_result<E, padded_k, Result::state, 4>(a, maps, start, stream);
}

template cudaError_t launch_gdn_scan<Bf16, 64>(const Scan&, const TileMaps&, Start, cudaStream_t);
template cudaError_t launch_gdn_scan<Bf16, 128>(const Scan&, const TileMaps&, Start, cudaStream_t);
template cudaError_t launch_gdn_scan<Half, 64>(const Scan&, const TileMaps&, Start, cudaStream_t);
template cudaError_t launch_gdn_scan<Half, 128>(const Scan&, const TileMaps&, Start, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
