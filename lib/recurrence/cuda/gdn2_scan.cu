// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2_scan.cuh"

#include "recurrence/cuda/gdn2_gates.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/state.cuh"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// What leaves a turn: the output, or the state before the chunk (for backward; needs no Q~ and no R).
enum class Result { output, state };

/// A stage of the ring. Results take the place of what they were made from, so that three stages fit.
template <int padded_k, Result result>
struct Stage {
  static constexpr bool output = result == Result::output;
  static constexpr int erase = 0;  // K~, then the rounded S^T
  static constexpr int x = erase + padded_k * 128;
  static constexpr int v = x + padded_k * 128;  // v, then the output
  static constexpr int w = v + panel_bytes;     // w, then Y (tokens x values)
  static constexpr int query = w + panel_bytes;
  static constexpr int r = query + (output ? padded_k * 128 : 0);
  static constexpr int gamma = r + (output ? panel_bytes : 0);
  static constexpr int bytes = (gamma + padded_k * 4 + 1023) / 1024 * 1024;
};
template <int stages>
struct Barriers {
  Ring<stages> ring;
  std::uint64_t ready[stages];  // S^T and Y are there
};

template <class E, int padded_k, Result result, int stages>
struct Block {
  using S = Stage<padded_k, result>;
  static constexpr int n = padded_k / 2;                      // registers of the state
  static constexpr int outputs = S::output ? stages - 1 : 0;  // groups that make the output, turn about
  static constexpr int groups = 2 + outputs;
  static constexpr int bytes = stages * S::bytes + sizeof(Barriers<stages>);
  static_assert(bytes <= 227 * 1024);

  const Gdn2Scan& a;
  const Gdn2ScanMaps& maps;
  Place place;
  unsigned char* memory;
  Team team;

  __device__ std::uint32_t stage(int i) const { return shared_address(memory) + (i % stages) * S::bytes; }
  __device__ Barriers<stages>& barriers() const {
    return *reinterpret_cast<Barriers<stages>*>(memory + stages * S::bytes);
  }
  /// The caller's tiles of 64 rows go by the copy engine, and so do all images.
  __device__ bool whole(int i) const { return a.use_maps && place.rows(i) == chunk_rows; }

  /// K~, whose place held the state of an earlier turn if that is the result; then each block of a team loads its own,
  /// since nobody else knows when that state is stored.
  __device__ void load_erase(int i) const {
    const char* const from = static_cast<const char*>(a.erase) + image(i) * padded_k * 128;
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x % group_threads == 0) {
      const Team& readers = S::output ? team : Team{};
      readers.copy(stage(i) + S::erase, from, padded_k * 128, &barriers().ring.full[i % stages]);
    }
#else
    copy_image_async<padded_k * 128, group_threads>(stage(i) + S::erase, from, threadIdx.x % group_threads);
#endif
  }
  __device__ std::int64_t image(int i) const {
    return (place.slot0 + i) * a.gate_heads + place.key_head;
  }

  /// Starts the copies of turn i, but for the tile in whose place a result lies.
  __device__ void load(int i, bool whole) const {
    const int thread = threadIdx.x % group_threads;
    const char* const x = static_cast<const char*>(a.x) + image(i) * padded_k * 128;
    const char* const query = static_cast<const char*>(a.query) + image(i) * padded_k * 128;
    const char* const r = static_cast<const char*>(a.r) + image(i) * panel_bytes;
    const float* const gamma = a.gamma + image(i) * padded_k;
    const std::uint32_t to = stage(i);
#if defined(DELTAPORT_BULK_COPY)
    if (thread == 0) {
      constexpr int images = S::gamma + padded_k * 4 - 2 * panel_bytes;  // all but v and w
      std::uint64_t* const barrier = barriers().ring.expect(i, images + (whole ? 2 * panel_bytes : 0));
      if constexpr (S::output) load_erase(i);
      copy_bulk(to + S::gamma, gamma, padded_k * 4, barrier);
      team.copy(to + S::x, x, padded_k * 128, barrier);
      if constexpr (S::output) {
        team.copy(to + S::query, query, padded_k * 128, barrier);
        team.copy(to + S::r, r, panel_bytes, barrier);
      }
    }
#else
    if constexpr (S::output) load_erase(i);
    if (thread < padded_k / 4) copy16_async(to + S::gamma + 16 * thread, gamma + 4 * thread, true);
    copy_image_async<padded_k * 128, group_threads>(to + S::x, x, thread);
    if constexpr (S::output) {
      copy_image_async<padded_k * 128, group_threads>(to + S::query, query, thread);
      copy_image_async<panel_bytes, group_threads>(to + S::r, r, thread);
    }
#endif
    load_tile(i, whole, &maps.w, a.w, S::w);
    if constexpr (!S::output) load_tile(i, whole, &maps.v, a.v, S::v);
  }
  __device__ void load_tile(int i, bool whole, const void* map, const void* tensor, int offset) const {
    const int thread = threadIdx.x % group_threads;
#if defined(DELTAPORT_BULK_COPY)
    if (whole) {
      if (thread == 0) {
        copy_tile_bulk(stage(i) + offset, map, place.tile, place.head, static_cast<int>(place.row(i)),
                       &barriers().ring.full[i % stages]);
      }
      return;
    }
#endif
    const std::int64_t row_bytes = std::int64_t{2} * a.value_heads * a.value_dim;
    const std::int64_t at =
        place.row(i) * row_bytes + 2 * (std::int64_t{place.head} * a.value_dim + place.tile);
    copy_tile_async<64, group_threads>(stage(i) + offset, static_cast<const char*>(tensor) + at, row_bytes,
                                       place.rows(i), min(64, a.value_dim - place.tile), thread);
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
      const std::int64_t at = ((place.slot0 + i) * a.value_heads + place.head) * tiles + place.tile / 64;
      char* const to = static_cast<char*>(a.states) + at * padded_k * 128;
#if defined(DELTAPORT_BULK_COPY)
      if (thread == 0) {
        store_bulk(to, stage(i) + S::erase, padded_k * 128);
        bulk_stores_wait_read();
      }
#else
      store_image<padded_k * 128, group_threads>(to, stage(i) + S::erase, thread);
#endif
    }
    named_barrier<1, group_threads>();
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
    const std::int64_t row_bytes = std::int64_t{2} * a.value_heads * a.value_dim;
    char* to = static_cast<char*>(a.o) + place.row(i) * row_bytes +
               2 * (std::int64_t{place.head} * a.value_dim + place.tile);
    const int rows = place.rows(i);
#pragma unroll
    for (int step = 0; step < chunk_rows * 8 / group_threads; ++step) {
      const int index = step * group_threads + thread, row = index / 8, column = (index % 8) * 8;
      if (row < rows && place.tile + column < a.value_dim) {
        *reinterpret_cast<uint4*>(to + row * row_bytes + 2 * column) =
            load_shared16(tile + unit_offset(row, column));
      }
    }
  }

  /// The last group's part: everything between device and shared memory.
  __device__ void move() const {
    for (int i = 0; i < place.chunks + stages; ++i) {
      if (i >= place.chunks && i < stages) continue;
      barriers().ring.wait_empty(i);
      if (i < place.chunks) load(i, whole(i));
      if (i >= stages) store(i - stages, whole(i - stages));
      if (i < place.chunks) {
        if constexpr (S::output) {
          load_tile(i, whole(i), &maps.v, a.v, S::v);
        } else {
          load_erase(i);
        }
        barriers().ring.signal_loads(i);
      }
    }
  }

  /// w^T o v^T, in the layout of S^T K~^T.
  __device__ void written_values(float (&value)[32], int i) const {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t v[4], w[4];
      load_a_transposed(v, stage(i) + S::v, 16 * s, 16 * warp);
      load_a_transposed(w, stage(i) + S::w, 16 * s, 16 * warp);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        float2 gate = unpack<E>(w[part]);
        if (a.write_sigmoid) gate = make_float2(sigmoid_fast(gate.x), sigmoid_fast(gate.y));
        const float2 x = unpack<E>(v[part]) * gate;
        value[8 * s + 2 * part] = x.x, value[8 * s + 2 * part + 1] = x.y;
      }
    }
  }

  /// The serial chain, by the first group: S^T K~^T, Y, the next state.
  __device__ void chain() const {
    const int warp = threadIdx.x / 32;
    const std::int64_t state_at = (place.sequence * a.value_heads + place.head) * a.key_dim * a.value_dim;
    float state[n];
    read_state<n>(state, a.initial_state == nullptr || !place.first ? nullptr : a.initial_state + state_at,
                  a.key_dim, a.value_dim, place.tile);
    std::uint32_t operand[n / 8][4];
    as_operand<E>(operand, state);
    for (int i = 0; i < place.chunks; ++i) {
      float product[32], value[32];
      barriers().ring.wait_full(i, true);  // only the engine's images are operands of products
      hold(product);
      products_begin();
      multiply<E, Tile::by_rows>(product, operand, stage(i) + S::erase, false);
      products_commit();
      written_values(value, i);
      const float* const gamma = reinterpret_cast<const float*>(memory + (i % stages) * S::bytes + S::gamma);
      products_wait<0>();
      hold(product);
      std::uint32_t y[4][4];
#pragma unroll
      for (int j = 0; j < 32; ++j) value[j] -= product[j];
      as_operand<E>(y, value);
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {  // not earlier: the compiler would wait for the product
        const float2 factor = *reinterpret_cast<const float2*>(gamma + 8 * j + 2 * (threadIdx.x % 4));
        state[4 * j] *= factor.x, state[4 * j + 1] *= factor.y;
        state[4 * j + 2] *= factor.x, state[4 * j + 3] *= factor.y;
      }
      hold(state);
      products_begin();
      multiply<E, Tile::by_columns>(state, y, stage(i) + S::x, true);
      products_commit();
      named_barrier<2, group_threads>();  // all warps are done with K~: the state takes its place
      store_state_tile(stage(i) + S::erase, operand);
      if constexpr (S::output) {
#pragma unroll
        for (int s = 0; s < 4; ++s) store_a_transposed(stage(i) + S::w, 16 * s, 16 * warp, y[s]);
      }
      fence_async_proxy();  // the copy engine reads the state or fills these places again
      if constexpr (S::output) signal_ready(i);
      products_wait<0>();
      hold(state);
      barriers().ring.signal_empty(i, team);
      as_operand<E>(operand, state);
    }
    if (a.final_state != nullptr && place.last) {
      write_state<n>(state, a.final_state + state_at, a.key_dim, a.value_dim, place.tile);
    }
  }
  __device__ void signal_ready(int i) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&barriers().ready[i % stages]);
  }

  /// o^T = S^T Q~^T + Y^T R^T off the chain: turns first, first + outputs, ...
  __device__ void output(int first) const {
    const int warp = threadIdx.x / 32 % 4;
    for (int i = first; i < place.chunks; i += outputs) {
      float out[32];
      std::uint32_t operand[padded_k / 16][4], y[4][4];
      // A wait tells phases apart by parity only. The phase before this one, turn i - stages, is past: this group has
      // seen turn i - outputs, and stages > outputs. The phase after it needs this turn's signal_empty. With the state
      // ready, the ring's phase is past too.
      barrier_wait(&barriers().ready[i % stages], (i / stages) % 2);
      barriers().ring.wait_full(i, true);
#pragma unroll
      for (int s = 0; s < padded_k / 16; ++s) load_a(operand[s], stage(i) + S::erase, 16 * warp, 16 * s);
#pragma unroll
      for (int s = 0; s < 4; ++s) load_a_transposed(y[s], stage(i) + S::w, 16 * s, 16 * warp);
      hold(out);
      products_begin();
      multiply<E, Tile::by_rows>(out, operand, stage(i) + S::query, false);
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
    gdn2_scan(const Gdn2Scan a, const __grid_constant__ Gdn2ScanMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using B = Block<E, padded_k, result, stages>;
  dependency_launch();
  if (a.segments.count > 1) dependency_wait();  // the preparation notes what decides over segments
  Place place;
  if (!find_place<Direction::forward>(place, blockIdx.x, a.chunks, a.gate_heads, a.value_heads, a.value_dim,
                                      a.segments)) {
    return;
  }
  const B block{a, maps, place, memory, Team::of_cluster()};
  if (threadIdx.x == 0) {
    block.barriers().ring.initialise(B::outputs > 0 ? 8 : 4, block.team);
    for (std::uint64_t& ready : block.barriers().ready) barrier_init(&ready, group_threads / 32);
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
cudaError_t launch_result(const Gdn2Scan& a, const Gdn2ScanMaps& maps, Start start, cudaStream_t stream) {
  using B = Block<E, padded_k, result, stages>;
  const std::int64_t tiles = (a.value_dim + 63) / 64;
  const std::int64_t blocks = tiles * a.value_heads * a.chunks.sequences * a.segments.count;
  return launch_clusters(team_of_value_tiles(padded_k, a.value_dim), gdn2_scan<E, padded_k, result, stages>,
                         dim3(static_cast<unsigned>(blocks)), B::groups * group_threads, B::bytes, start,
                         stream, a, maps);
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn2_scan(const Gdn2Scan& a, const Gdn2ScanMaps& maps, Start start, cudaStream_t stream) {
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  if (shared >= 227 * 1024) {
    return a.o != nullptr ? launch_result<E, padded_k, Result::output, 3>(a, maps, start, stream)
                          : launch_result<E, padded_k, Result::state, 4>(a, maps, start, stream);
  }
  return a.o != nullptr ? launch_result<E, padded_k, Result::output, 2>(a, maps, start, stream)
                        : launch_result<E, padded_k, Result::state, 3>(a, maps, start, stream);
}

template cudaError_t launch_gdn2_scan<Bf16, 64>(const Gdn2Scan&, const Gdn2ScanMaps&, Start, cudaStream_t);
template cudaError_t launch_gdn2_scan<Bf16, 128>(const Gdn2Scan&, const Gdn2ScanMaps&, Start, cudaStream_t);
template cudaError_t launch_gdn2_scan<Half, 64>(const Gdn2Scan&, const Gdn2ScanMaps&, Start, cudaStream_t);
template cudaError_t launch_gdn2_scan<Half, 128>(const Gdn2Scan&, const Gdn2ScanMaps&, Start, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
