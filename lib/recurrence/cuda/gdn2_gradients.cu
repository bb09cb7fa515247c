// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2_gradients.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_gates.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/products.cuh"

namespace deltaport::recurrence::cuda {
namespace {

constexpr int threads = 3 * group_threads;

/// Barriers of the block; 0 is __syncthreads.
enum Sync : int { sync_third = 1, sync_all, sync_y, sync_y_odd, sync_first, sync_maxima };

template <int padded_k>
struct Layout {
  static constexpr int wide = padded_k * 128;
  static constexpr int erase = 0, d_x = 0;  // K~, then dX
  static constexpr int x = wide;
  static constexpr int r = x + wide;
  static constexpr int inverse = r + panel_bytes;  // A high, A low
  static constexpr int d_r = inverse + 2 * panel_bytes;
  static constexpr int y = d_r + panel_bytes;         // two
  static constexpr int values = y + 2 * panel_bytes;  // two of the following
  static constexpr int v = 0, w = panel_bytes, d_o = 2 * panel_bytes, d_y = 3 * panel_bytes,
                       s = 4 * panel_bytes, d_s = s + wide;
  static constexpr int value_bytes = d_s + wide;
  static constexpr int states = values + 2 * value_bytes;  // sums of S dS' of every warp
  static constexpr int maxima = states + 4 * padded_k * 4;
  static constexpr int barriers = maxima + 8 * 4;
  static constexpr int bytes = barriers + 3 * 8;
  static_assert(bytes <= 227 * 1024);
};

template <class E, int padded_k>
struct Block {
  using L = Layout<padded_k>;
  static constexpr int steps = padded_k / 16;

  const Gdn2Gradients& a;
  const Gdn2GradientMaps& maps;
  unsigned char* memory;
  Chunk chunk;
  std::int64_t slot;
  int gate_head, tiles, turns;  // a turn: 64 value columns of one of the value heads

  __device__ std::uint32_t at(int offset) const { return shared_address(memory) + offset; }
  __device__ std::uint32_t value_tile(int turn, int part) const {
    return at(L::values + (turn % 2) * L::value_bytes + part);
  }
  __device__ std::uint32_t y_tile(int turn) const { return at(L::y + (turn % 2) * panel_bytes); }
  __device__ std::uint64_t* barrier(int i) const {
    return reinterpret_cast<std::uint64_t*>(memory + L::barriers) + i;
  }
  __device__ bool whole() const { return a.use_maps && chunk.rows == chunk_rows; }
  __device__ std::int64_t image() const { return slot * a.gate_heads + gate_head; }
  __device__ int head(int turn) const { return gate_head * (turns / tiles) + turn / tiles; }

  // ---- loads, by all threads -------------------------------------------------------------------------------

  template <int bytes>
  __device__ void load_image(std::uint32_t to, const void* images, std::int64_t index,
                             std::uint64_t* barrier) const {
    const char* const from = static_cast<const char*>(images) + index * bytes;
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) copy_bulk(to, from, bytes, barrier);
#else
    for (int i = threadIdx.x; i < bytes / 16; i += threads) copy16_async(to + 16 * i, from + 16 * i, true);
#endif
  }
  __device__ void load_images() const {
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) barrier_arrive_expect(barrier(0), 2 * L::wide + 3 * panel_bytes);
#endif
    load_image<L::wide>(at(L::erase), a.erase, image(), barrier(0));
    load_image<2 * panel_bytes>(at(L::inverse), a.inverse, image(), barrier(0));
    load_image<panel_bytes>(at(L::r), a.r, image(), barrier(0));
    load_image<L::wide>(at(L::x), a.x, image(), barrier(0));
    copies_arrive(barrier(0));
  }
  __device__ void load_values(int turn) const {
    std::uint64_t* const full = barrier(1 + turn % 2);
    const int column = turn % tiles * 64;
    const std::int64_t index = (slot * a.value_heads + head(turn)) * tiles + turn % tiles;
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) barrier_arrive_expect(full, 2 * L::wide + (whole() ? 4 * panel_bytes : 0));
#endif
    load_image<L::wide>(value_tile(turn, L::s), a.states, index, full);
    load_tile(turn, L::v, a.v, maps.v, column, full);
    load_tile(turn, L::w, a.w, maps.w, column, full);
    load_tile(turn, L::d_y, a.d_y, maps.d_y, column, full);
    load_tile(turn, L::d_o, a.d_o, maps.d_o, column, full);
    load_image<L::wide>(value_tile(turn, L::d_s), a.d_states, index, full);
    copies_arrive(full);
  }
  __device__ void load_tile(int turn, int part, const void* tensor, const CUtensorMap& map, int column,
                            std::uint64_t* full) const {
    const TensorTiles tile{tensor, a.value_heads, a.value_dim};
#if defined(DELTAPORT_BULK_COPY)
    if (whole()) {
      if (threadIdx.x == 0)
        tile.load_bulk<64>(value_tile(turn, part), map, chunk.row, head(turn), column, full);
      return;
    }
#endif
    if (threadIdx.x < 256)
      tile.load<64, 256>(value_tile(turn, part), chunk.row, chunk.rows, head(turn), column, threadIdx.x);
  }
  __device__ void wait(int which, int phase) const {
    barrier_wait(barrier(which), phase % 2);
    fence_async_proxy();
  }
  /// Calls body(turn) for all turns; loads go two turns ahead.
  template <class Body>
  __device__ void for_values(Body body) const {
    for (int turn = 0; turn < turns; ++turn) {
      wait(1 + turn % 2, turn / 2);
      body(turn);
      if (turn + 2 < turns) {
        fence_async_proxy();
        named_barrier<sync_all, threads>();
        load_values(turn + 2);
      }
    }
  }

  // ---- products --------------------------------------------------------------------------------------------

  /// An accumulator times `factor` as fragments of E.
  __device__ void write_fragments(void* to, const float (&d)[padded_k / 2], float factor, int warp) const {
    uint4* const fragments =
        reinterpret_cast<uint4*>(static_cast<char*>(to) + image() * L::wide) + warp * steps * 32;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      uint4 x;
      x.x = pack<E>(factor * d[8 * s], factor * d[8 * s + 1]);
      x.y = pack<E>(factor * d[8 * s + 2], factor * d[8 * s + 3]);
      x.z = pack<E>(factor * d[8 * s + 4], factor * d[8 * s + 5]);
      x.w = pack<E>(factor * d[8 * s + 6], factor * d[8 * s + 7]);
      fragments[32 * s + threadIdx.x % 32] = x;
    }
  }
  /// What takes gradients with respect to products of rows to those of rows of length 1: |left_i| |right_j|.
  __device__ void scale_by_lengths(float (&d)[32], int left, int row) const {
    if (a.l2_norm) return;
    const float *const rows = a.norms + (2 * image() + left) * 64, *const keys =
                                                                       a.norms + (2 * image() + 1) * 64;
    const float own[2] = {1.0f / rows[row], 1.0f / rows[row + 8]};
    for_entries([&](int j, int part, int column) { d[j] *= own[part] / keys[column]; });
  }
  /// dP (which = 0) and dL (1), by two groups at once: scales both so that binary16 holds them.
  __device__ void write_scores(const float (&d)[32], int which, int warp) const {
    float largest = 0.0f;
    for_entries([&](int j, int, int) { largest = fmaxf(largest, fabsf(d[j])); });
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    float* const maxima = reinterpret_cast<float*>(memory + L::maxima);
    if (threadIdx.x % 32 == 0) maxima[4 * which + warp] = largest;
    named_barrier<sync_maxima, 2 * group_threads>();
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, maxima[i]);
    const int exponent = min(max(__float_as_int(largest) >> 23, 30), 240);
    const float factor = __int_as_float((267 - exponent) << 23);
    if (which == 0 && threadIdx.x == 0) a.between.undo[image()] = __int_as_float((exponent - 13) << 23);
    uint4* const fragments =
        reinterpret_cast<uint4*>(static_cast<char*>(a.between.scores) + (2 * image() + which) * panel_bytes) +
        warp * 4 * 32;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint4 x;
      x.x = pack<Half>(factor * d[8 * s], factor * d[8 * s + 1]);
      x.y = pack<Half>(factor * d[8 * s + 2], factor * d[8 * s + 3]);
      x.z = pack<Half>(factor * d[8 * s + 4], factor * d[8 * s + 5]);
      x.w = pack<Half>(factor * d[8 * s + 6], factor * d[8 * s + 7]);
      if (s <= warp) fragments[32 * s + threadIdx.x % 32] = x;  // blocks above the diagonal are not read
    }
  }

  // ---- first group: dQ~, dv, dw, the sums of S dS', dP -----------------------------------------------------

  __device__ void queries() const {
    const int warp = threadIdx.x / 32, row = own_row(warp);
    {
      float d_q[padded_k / 2], states[8] = {};
      clear(d_q);
      for_values([&](int turn) {
        add_tiles<E, Tile::by_rows, Tile::by_columns>(d_q, value_tile(turn, L::d_o), value_tile(turn, L::s));
        write_value_gradients(turn);
        add_states(states, turn);
      });
      write_fragments(a.between.d_query, d_q, 1.0f, warp);
      write_states(states, warp);
    }
    named_barrier<sync_all, threads>();  // dR is there
    wait(0, 0);
    float d_p[32];
    add_right_parts<E, Tile::by_rows, Tile::by_rows>(d_p, at(L::d_r), at(L::inverse), false);
    for_entries(
        [&](int j, int part, int column) { d_p[j] = column <= row + 8 * part ? a.scale * d_p[j] : 0.0f; });
    scale_by_lengths(d_p, 0, row);
    write_scores(d_p, 0, warp);
  }
  /// dv = dY o w, dw = dY o v, by units of eight columns.
  __device__ void write_value_gradients(int turn) const {
    const int column = turn % tiles * 64;
    const TensorTiles dv{a.dv, a.value_heads, a.value_dim}, dw{a.dw, a.value_heads, a.value_dim};
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
      const unsigned index = step * group_threads + threadIdx.x, r = index / 8, c = index % 8 * 8;
      if (r >= chunk.rows || column + c >= a.value_dim) continue;
      const std::uint32_t offset = unit_offset(r, c);
      const uint4 v = load_shared16(value_tile(turn, L::v) + offset),
                  w = load_shared16(value_tile(turn, L::w) + offset),
                  d_y = load_shared16(value_tile(turn, L::d_y) + offset);
      const std::uint32_t vs[4] = {v.x, v.y, v.z, v.w}, ws[4] = {w.x, w.y, w.z, w.w},
                          gradients[4] = {d_y.x, d_y.y, d_y.z, d_y.w};
      std::uint32_t to_v[4], to_w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 gate = unpack<E>(ws[i]), value = unpack<E>(vs[i]);
        if (a.write_sigmoid) {
          gate = make_float2(sigmoid_fast(gate.x), sigmoid_fast(gate.y));
          value = make_float2(value.x * gate.x * (1.0f - gate.x), value.y * gate.y * (1.0f - gate.y));
        }
        const float2 gradient = unpack<E>(gradients[i]), first = gradient * gate, second = gradient * value;
        to_v[i] = pack<E>(first.x, first.y), to_w[i] = pack<E>(second.x, second.y);
      }
      *reinterpret_cast<uint4*>(const_cast<char*>(dv.at(chunk.row + r, head(turn), column + c))) =
          make_uint4(to_v[0], to_v[1], to_v[2], to_v[3]);
      *reinterpret_cast<uint4*>(const_cast<char*>(dw.at(chunk.row + r, head(turn), column + c))) =
          make_uint4(to_w[0], to_w[1], to_w[2], to_w[3]);
    }
  }
  /// Adds S dS' of eight channels and every so many value columns.
  __device__ void add_states(float (&sums)[8], int turn) const {
    constexpr unsigned units = padded_k / 8, together = group_threads / units;
    const unsigned unit = threadIdx.x % units;
#pragma unroll 2
    for (unsigned v = threadIdx.x / units; v < 64; v += together) {
      const std::uint32_t offset = unit_offset(v, 8 * unit);
      const uint4 s = load_shared16(value_tile(turn, L::s) + offset),
                  d_s = load_shared16(value_tile(turn, L::d_s) + offset);
      const std::uint32_t left[4] = {s.x, s.y, s.z, s.w}, right[4] = {d_s.x, d_s.y, d_s.z, d_s.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 product = unpack<E>(left[i]) * unpack<E>(right[i]);
        sums[2 * i] += product.x, sums[2 * i + 1] += product.y;
      }
    }
  }
  __device__ void write_states(float (&sums)[8], int warp) const {
    constexpr int units = padded_k / 8;
    float* const shared = reinterpret_cast<float*>(memory + L::states);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int step = units; step < 32; step *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
      if (lane < units) shared[warp * padded_k + 8 * lane + i] = sums[i];
    }
    named_barrier<sync_first, group_threads>();
    if (threadIdx.x < padded_k) {
      const float* const from = shared + threadIdx.x;
      a.between.d_gamma[image() * padded_k + threadIdx.x] =
          from[0] + from[padded_k] + from[2 * padded_k] + from[3 * padded_k];
    }
  }

  // ---- second group: dK~, dX, dK^ --------------------------------------------------------------------------

  __device__ void keys() const {
    const int warp = threadIdx.x / 32 % 4;
    float d_k[padded_k / 2], d_x[padded_k / 2];
    clear(d_k), clear(d_x);
    for_values([&](int turn) {
      add_tiles<E, Tile::by_rows, Tile::by_columns>(d_k, value_tile(turn, L::d_y), value_tile(turn, L::s));
      if (turn % 2 == 0) {
        named_barrier<sync_y, 2 * group_threads>();
      } else {
        named_barrier<sync_y_odd, 2 * group_threads>();
      }
      add_tiles<E, Tile::by_rows, Tile::by_columns>(d_x, y_tile(turn), value_tile(turn, L::d_s));
    });
    // The third group is done with K~: it has made its last Y.
    store_rows<E>(at(L::d_x), d_x, warp);
    fence_async_proxy();
    write_fragments(a.between.d_erase, d_k, -1.0f, warp);
    named_barrier<sync_all, threads>();
    wait(0, 0);
    add_left_parts<E, Tile::by_rows, Tile::by_columns>(d_k, at(L::inverse), at(L::d_x), false);
    write_fragments(a.between.d_restored, d_k, 1.0f, warp);
  }

  // ---- third group: Y, dR, dL ------------------------------------------------------------------------------

  __device__ void scores() const {
    const int warp = threadIdx.x / 32 % 4, row = own_row(warp);
    float d_r[32];
    clear(d_r);
    wait(0, 0);
    for_values([&](int turn) {
      make_y(turn, warp);
      fence_async_proxy();
      // Two barriers, or this group could arrive twice before the other comes once.
      if (turn % 2 == 0) {
        named_arrive<sync_y, 2 * group_threads>();
      } else {
        named_arrive<sync_y_odd, 2 * group_threads>();
      }
      named_barrier<sync_third, group_threads>();
      add_tiles<E, Tile::by_rows, Tile::by_rows>(d_r, value_tile(turn, L::d_o), y_tile(turn));
    });
    for_entries([&](int j, int part, int column) { d_r[j] = column <= row + 8 * part ? d_r[j] : 0.0f; });
    store_rows<E>(at(L::d_r), d_r, warp);
    fence_async_proxy();
    named_barrier<sync_all, threads>();  // the others have what they wait for, and dX is there

    std::uint32_t upper[4][4], rest[4][4];
    float z[32], d_l[32];  // others than dR, and cleared: the compiler would not overlap products otherwise
    clear(z);
    add_all(z, [&] {
      multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(z, at(L::r), at(L::d_r), true);
      multiply_tiles<E, Tile::by_rows, Tile::by_rows, steps>(z, at(L::x), at(L::d_x), true);
    });
    split_operand<E>(upper, rest, z);
    clear(d_l);
    add_all(d_l, [&] {
      multiply<E, Tile::by_rows>(d_l, upper, at(L::inverse), true);
      multiply<E, Tile::by_rows>(d_l, upper, at(L::inverse) + panel_bytes, true);
      multiply<E, Tile::by_rows>(d_l, rest, at(L::inverse), true);
    });
    for_entries([&](int j, int part, int column) { d_l[j] = column < row + 8 * part ? -d_l[j] : 0.0f; });
    scale_by_lengths(d_l, 1, row);
    write_scores(d_l, 1, warp);
  }
  /// Y = w o V - K~ S, rounded, to its tile.
  __device__ void make_y(int turn, int warp) const {
    float y[32];
    add_tiles<E, Tile::by_rows, Tile::by_rows, steps>(y, at(L::erase), value_tile(turn, L::s), false);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t v[4], w[4], operand[4];
      load_a(v, value_tile(turn, L::v), 16 * warp, 16 * s);
      load_a(w, value_tile(turn, L::w), 16 * warp, 16 * s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 gate = unpack<E>(w[i]);
        if (a.write_sigmoid) gate = make_float2(sigmoid_fast(gate.x), sigmoid_fast(gate.y));
        const float2 value = unpack<E>(v[i]) * gate;
        operand[i] = pack<E>(value.x - y[8 * s + 2 * i], value.y - y[8 * s + 2 * i + 1]);
      }
      store_a(y_tile(turn), 16 * warp, 16 * s, operand);
    }
  }
};

template <class E, int padded_k>
__global__ void __launch_bounds__(threads, 1)
    gdn2_gradients(const Gdn2Gradients a, const __grid_constant__ Gdn2GradientMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::int64_t slot = a.chunks.in_time(blockIdx.x / a.gate_heads, false);
  const Chunk chunk = a.chunks.at(slot);
  if (chunk.rows == 0) return;
  const int tiles = (a.value_dim + 63) / 64;
  const Block<E, padded_k> block{a,      maps,
                                 memory, chunk,
                                 slot,   static_cast<int>(blockIdx.x % a.gate_heads),
                                 tiles,  tiles * (a.value_heads / a.gate_heads)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) {
#if defined(DELTAPORT_BULK_COPY)
      barrier_init(block.barrier(i), threads + 1);
#else
      barrier_init(block.barrier(i), threads);
#endif
    }
  }
  __syncthreads();
  dependency_wait();
  block.load_values(0);
  block.load_images();
  if (block.turns > 1) block.load_values(1);
  const int role = __shfl_sync(0xffffffffu, threadIdx.x / group_threads, 0);
  if (role == 0) {
    registers_give<152>();
    block.queries();
  } else if (role == 1) {
    registers_take<176>();
    block.keys();
  } else {
    registers_take<176>();
    block.scores();
  }
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn2_gradients(const Gdn2Gradients& a, const Gdn2GradientMaps& maps, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.chunks.slots() * a.gate_heads));
  return launch(gdn2_gradients<E, padded_k>, grid, threads, Layout<padded_k>::bytes, Start::beside_previous,
                stream, a, maps);
}

template cudaError_t launch_gdn2_gradients<Bf16, 64>(const Gdn2Gradients&, const Gdn2GradientMaps&,
                                                     cudaStream_t);
template cudaError_t launch_gdn2_gradients<Bf16, 128>(const Gdn2Gradients&, const Gdn2GradientMaps&,
                                                      cudaStream_t);
template cudaError_t launch_gdn2_gradients<Half, 64>(const Gdn2Gradients&, const Gdn2GradientMaps&,
                                                     cudaStream_t);
template cudaError_t launch_gdn2_gradients<Half, 128>(const Gdn2Gradients&, const Gdn2GradientMaps&,
                                                      cudaStream_t);

}  // namespace deltaport::recurrence::cuda
