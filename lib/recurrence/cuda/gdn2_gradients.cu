// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2_gradients.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_gates.cuh"
#include "recurrence/cuda/gdn2_gradients_block.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/products.cuh"

namespace deltaport::recurrence::cuda {
namespace {

using namespace gradients2;

/// `common`: see is_common.
template <class E, int padded_k, bool common>
struct Block : BlockBase<E, padded_k, common> {
  using Base = BlockBase<E, padded_k, common>;
  using L = Layout<padded_k>;
  using Base::a;
  using Base::after;
  using Base::at;
  using Base::chunk;
  using Base::ends;
  using Base::first_turn;
  using Base::for_values;
  using Base::image;
  using Base::load_first;
  using Base::maps;
  using Base::members;
  using Base::memory;
  using Base::prepare_barriers;
  using Base::slot;
  using Base::steps;
  using Base::tiles;
  using Base::turns;
  using Base::value_tile;
  using Base::wait;
  using Base::wait_d_states;
  using Base::whole;
  using Base::y_tile;

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
    for_entries([&](int j, int part, int column) { d[j] *= __fdividef(own[part], keys[column]); });
  }
  /// dP (which = 0) and dL (1), by two groups at once: scales both so that binary16 holds them. Calls meanwhile() before it
  /// waits for the other group.
  template <class Meanwhile>
  __device__ void write_scores(const float (&d)[32], int which, int warp, Meanwhile meanwhile) const {
    float largest = 0.0f;
    for_entries([&](int j, int, int) { largest = fmaxf(largest, fabsf(d[j])); });
    largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)));
    float* const maxima = reinterpret_cast<float*>(memory + L::maxima);
    if (threadIdx.x % 32 == 0) maxima[4 * which + warp] = largest;
    __syncwarp();  // the arrival stands for what all of the warp has written
    if (threadIdx.x % 32 == 0) barrier_arrive(this->barrier(made_maxima));
    meanwhile();
    barrier_wait(this->barrier(made_maxima), 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, maxima[i]);
    const int exponent = min(max(__float_as_int(largest) >> 23, 30), 240);
    const float factor = __int_as_float((267 - exponent) << 23);
    if (which == 0 && threadIdx.x == 0) a.between.undo[4 * image()] = __int_as_float((exponent - 13) << 23);
    // A register of a fragment is a matrix of 8 x 8 by rows, as the second kernel wants them in shared memory.
    std::uint32_t* const to =
        reinterpret_cast<std::uint32_t*>(static_cast<char*>(a.between.scores) + 2 * image() * panel_bytes +
                                         score_block(which, warp, 0)) +
        threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if (s > warp) break;  // blocks above the diagonal are not read
#pragma unroll
      for (int i = 0; i < 4; ++i)
        to[128 * s + 32 * i] = pack<Half>(factor * d[8 * s + 2 * i], factor * d[8 * s + 2 * i + 1]);
    }
  }

  // ---- first group: dQ~, dY, the sums of S dS', dP ---------------------------------------------------------

  __device__ void queries() const {
    const int warp = threadIdx.x / 32, row = own_row(warp);
    load_first();
    {
      float d_q[padded_k / 2], states[8] = {};
      clear(d_q);
      this->template for_values<true>([&](Turn turn) {
        add_tiles<E, Tile::by_rows, Tile::by_columns>(d_q, value_tile(turn.number, L::d_o),
                                                      value_tile(turn.number, L::s));
        // dS' comes last: there is time to store.
        if (ends(turn)) write_fragments(a.between.d_query, d_q, a.scale, warp);
        wait_d_states(turn);
        make_d_y(turn, warp, states);
        if (!common || ends(turn)) add_states(states, turn.number);
      });
      if (!common) write_fragments(a.between.d_query, d_q, a.scale, warp);
      write_states(states, warp);
    }
    wait(loaded_rest, 0);
    named_barrier<sync_d_r, 2 * group_threads>();
    float d_p[32];
    add_right_parts<E, Tile::by_rows, Tile::by_rows>(d_p, at(L::d_r), at(L::inverse), false);
    for_entries(
        [&](int j, int part, int column) { d_p[j] = column <= row + 8 * part ? a.scale * d_p[j] : 0.0f; });
    scale_by_lengths(d_p, 0, row);
    // All of dY is there: the group has met in write_states.
    write_scores(d_p, 0, warp, [&] {
      if (common) write_value_gradients(after(first_turn()));
    });
  }
  /// dY = R^T dO + X dS', rounded, to its tile. In a turn known to be the last it adds the first turn's part to
  /// the sums of S dS' meanwhile: dQ~ leaves no registers for that before.
  __device__ void make_d_y(Turn turn, int warp, float (&states)[8]) const {
    const int i = turn.number;
    float d_y[32];
    wait(loaded_products, 0);
    const auto start = [&] {
      multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(d_y, at(L::r), value_tile(i, L::d_o), false);
      multiply_tiles<E, Tile::by_rows, Tile::by_rows, steps>(d_y, at(L::x), value_tile(i, L::d_s), true);
    };
    add_all(d_y, start, [&] {
      if (ends(turn)) add_states(states, 0);
    });
    store_rows<E>(value_tile(i, L::d_y), d_y, warp);
    fence_async_proxy();
    if (i % 2 == 0) {
      named_arrive<sync_d_y, 2 * group_threads>();
    } else {
      named_arrive<sync_d_y_odd, 2 * group_threads>();
    }
    if (common) {
      if (i == 0) named_arrive<sync_d_y_third, 2 * group_threads>();
    } else if (i + 2 < turns()) {  // of the last two turns by the third group
      named_barrier<sync_first, group_threads>();
      write_value_gradients(turn);
    }
  }
  /// Adds S dS' of eight channels and every so many value columns. Not by tensor cores: products of single warps would
  /// wait there for those of the other groups.
  __device__ void add_states(float (&sums)[8], int turn) const {
    constexpr unsigned units = padded_k / 8, rows = group_threads / units, together = 4;
    static_assert(rows % 8 == 0, "the swizzle is the same in every step");
    const std::uint32_t first =
        value_tile(turn, 0) + unit_offset(threadIdx.x / units, threadIdx.x % units * 8);
#pragma unroll
    for (unsigned i = 0; i < 64 / rows; i += together) {
      uint4 s[together], d_s[together];
#pragma unroll
      for (unsigned k = 0; k < together; ++k) {
        s[k] = load_shared16(first + L::s + (i + k) * rows * 128);
        d_s[k] = load_shared16(first + L::d_s + (i + k) * rows * 128);
      }
#pragma unroll
      for (unsigned k = 0; k < together; ++k) {
        const std::uint32_t left[4] = {s[k].x, s[k].y, s[k].z, s[k].w},
                            right[4] = {d_s[k].x, d_s[k].y, d_s[k].z, d_s[k].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 x = unpack<E>(left[j]), y = unpack<E>(right[j]);
          sums[2 * j] = fmaf(x.x, y.x, sums[2 * j]), sums[2 * j + 1] = fmaf(x.y, y.y, sums[2 * j + 1]);
        }
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
    for_values([&](Turn turn) {
      const int i = turn.number;
      wait_d_states(turn);
      if (i % 2 == 0) {
        named_barrier<sync_y, 2 * group_threads>();
      } else {
        named_barrier<sync_y_odd, 2 * group_threads>();
      }
      add_tiles<E, Tile::by_rows, Tile::by_columns>(d_x, y_tile(i), value_tile(i, L::d_s));
      // The third group waits for dX most, and has made its last Y.
      if (ends(turn)) leave_d_x(d_x, warp);
      if (i % 2 == 0) {
        named_barrier<sync_d_y, 2 * group_threads>();
      } else {
        named_barrier<sync_d_y_odd, 2 * group_threads>();
      }
      add_tiles<E, Tile::by_rows, Tile::by_columns>(d_k, value_tile(i, L::d_y), value_tile(i, L::s));
    });
    if (!common) leave_d_x(d_x, warp);
    wait(loaded_rest, 0);
    named_barrier<sync_second, group_threads>();
    add_all(
        d_x,
        [&] {
          multiply_tiles<E, Tile::by_rows, Tile::by_columns, 4>(d_x, at(L::inverse), at(L::d_x), false);
          multiply_tiles<E, Tile::by_rows, Tile::by_columns, 4>(d_x, at(L::inverse) + panel_bytes, at(L::d_x),
                                                                true);
        },
        [&] { write_fragments(a.between.d_erase, d_k, -1.0f, warp); });
    write_fragments(a.between.d_restored, d_x, 1.0f, warp);
  }

  /// To the place of K~, once the third group is done with it.
  __device__ void leave_d_x(const float (&d_x)[padded_k / 2], int warp) const {
    store_rows<E>(at(L::d_x), d_x, warp);
    fence_async_proxy();
    named_arrive<sync_d_x, 2 * group_threads>();
  }

  // ---- third group: Y, dR, dL, dv, dw ----------------------------------------------------------------------

  __device__ void scores() const {
    const int warp = threadIdx.x / 32 % 4, row = own_row(warp);
    float d_r[32];
    clear(d_r);
    wait(loaded_erase, 0);
    for_values([&](Turn turn) {
      const int i = turn.number;
      make_y(i, warp);
      fence_async_proxy();
      // Two barriers, or this group could arrive twice before the other comes once.
      if (i % 2 == 0) {
        named_arrive<sync_y, 2 * group_threads>();
      } else {
        named_arrive<sync_y_odd, 2 * group_threads>();
      }
      named_barrier<sync_third, group_threads>();
      add_tiles<E, Tile::by_rows, Tile::by_rows>(d_r, value_tile(i, L::d_o), y_tile(i));
      if (common && i == 0) {  // the next turn's tiles are on their way
        named_barrier<sync_d_y_third, 2 * group_threads>();
        write_value_gradients(turn);
      }
    });
    for_entries([&](int j, int part, int column) { d_r[j] = column <= row + 8 * part ? d_r[j] : 0.0f; });
    store_rows<E>(at(L::d_r), d_r, warp);
    fence_async_proxy();
    named_arrive<sync_d_r, 2 * group_threads>();
    wait(loaded_products, 0), wait(loaded_rest, 0);
    named_barrier<sync_third, group_threads>();

    std::uint32_t upper[4][4], rest[4][4];
    float z[32], d_l[32];  // others than dR, and cleared: the compiler would not overlap products otherwise
    clear(z);
    add_tiles<E, Tile::by_columns, Tile::by_columns>(z, at(L::r), at(L::d_r));
    named_barrier<sync_d_x, 2 * group_threads>();
    add_tiles<E, Tile::by_rows, Tile::by_rows, steps>(z, at(L::x), at(L::d_x));
    split_operand<E>(upper, rest, z);
    clear(d_l);
    add_all(d_l, [&] {
      multiply<E, Tile::by_rows>(d_l, upper, at(L::inverse), true);
      multiply<E, Tile::by_rows>(d_l, upper, at(L::inverse) + panel_bytes, true);
      multiply<E, Tile::by_rows>(d_l, rest, at(L::inverse), true);
    });
    for_entries([&](int j, int part, int column) { d_l[j] = column < row + 8 * part ? -d_l[j] : 0.0f; });
    scale_by_lengths(d_l, 1, row);
    write_scores(d_l, 1, warp, [] {});
    // Nobody waits for these, and the tiles of the last two turns stay; dY is there, or the first group would not have
    // arrived in write_scores.
#pragma unroll 1
    for (Turn turn = first_turn(); !common && turn.number < turns(); turn = after(turn)) {
      if (turn.number + 2 >= turns()) write_value_gradients(turn);
    }
  }
  /// Y = w o V - K~ S, rounded, to its tile.
  __device__ void make_y(int turn, int warp) const {
    float y[32], values[32];
    const std::uint32_t v_tile = value_tile(turn, L::v), w_tile = value_tile(turn, L::w);
    add_all(
        y,
        [&] {
          multiply_tiles<E, Tile::by_rows, Tile::by_rows, steps>(y, at(L::erase), value_tile(turn, L::s),
                                                                 false);
        },
        [&] {
          std::uint32_t v[4][4], w[4][4];
          load_rows(v, v_tile, warp);
          load_rows(w, w_tile, warp);
          for_each_pair([&](int s, int i) {
            const float2 gate = unpack<E>(w[s][i]);
            values[8 * s + 2 * i] = gate.x, values[8 * s + 2 * i + 1] = gate.y;
          });
          if (a.write_sigmoid) {
#pragma unroll
            for (int j = 0; j < 32; ++j) values[j] = sigmoid_fast(values[j]);
          }
          for_each_pair([&](int s, int i) {
            const float2 value = unpack<E>(v[s][i]);
            values[8 * s + 2 * i] *= value.x, values[8 * s + 2 * i + 1] *= value.y;
          });
        });
#pragma unroll
    for (int j = 0; j < 32; ++j) values[j] -= y[j];
    store_rows<E>(y_tile(turn), values, warp);
  }
  /// dv = dY o w, dw = dY o v, by units of eight columns.
  __device__ void write_value_gradients(Turn turn) const {
    const unsigned first = threadIdx.x % group_threads / 8,
                   c = threadIdx.x % 8 * 8;  // rows first, first + 16, ...
    const int column = 64 * turn.tile + static_cast<int>(c);
    if (!common && column >= a.value_dim) return;
    constexpr int rows = group_threads / 8;
    const std::uint32_t place = value_tile(turn.number, 0) + unit_offset(first, c);
    const TensorTiles tile{nullptr, a.value_heads, a.value_dim};
    const std::int64_t offset = tile.offset(chunk.row + first, turn.head, column);
    char *dv = static_cast<char*>(a.dv) + offset, *dw = static_cast<char*>(a.dw) + offset;
    const std::int64_t step = rows * tile.row_bytes();
    constexpr int together = 4;
#pragma unroll 1
    for (int i = 0; i < chunk_rows / rows; i += together) {
      uint4 v[together], w[together], d_y[together];
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const std::uint32_t from = place + (i + k) * rows * 128;
        v[k] = load_shared16(from + L::v), w[k] = load_shared16(from + L::w);
        d_y[k] = load_shared16(from + L::d_y);
      }
#pragma unroll
      for (int k = 0; k < together; ++k) {
        if (a.write_sigmoid) {
          through_sigmoid(v[k], w[k], d_y[k]);
        } else {
          w[k] = multiply_units<E>(d_y[k], w[k]), v[k] = multiply_units<E>(d_y[k], v[k]);
        }
        if (common || static_cast<int>(first) + (i + k) * rows < chunk.rows) {
          *reinterpret_cast<uint4*>(dv) = w[k];
          *reinterpret_cast<uint4*>(dw) = v[k];
        }
        dv += step, dw += step;
      }
    }
  }
  /// dY o sigmoid(w) to `w`, dY o v sigmoid'(w) to `v`.
  __device__ static void through_sigmoid(uint4& v, uint4& w, const uint4& d_y) {
    std::uint32_t *const values = &v.x, *const gates = &w.x;
    const std::uint32_t* const gradients = &d_y.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 gate = unpack<E>(gates[i]), value = unpack<E>(values[i]);
      gate = make_float2(sigmoid_fast(gate.x), sigmoid_fast(gate.y));
      value = make_float2(value.x * gate.x * (1.0f - gate.x), value.y * gate.y * (1.0f - gate.y));
      const float2 gradient = unpack<E>(gradients[i]), first = gradient * gate, second = gradient * value;
      gates[i] = pack<E>(first.x, first.y), values[i] = pack<E>(second.x, second.y);
    }
  }
  template <class Body>
  __device__ static void for_each_pair(Body body) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) body(s, i);
    }
  }
};

template <class E, int padded_k, bool common>
__global__ void __launch_bounds__(threads, 1)
    gdn2_gradients(const __grid_constant__ Gdn2Gradients arguments,
                   const __grid_constant__ Gdn2GradientMaps maps, const Divisor heads, int members) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Gdn2Gradients known;
  if (common) known = know_common<padded_k>(arguments);
  const Gdn2Gradients& a = common ? known : arguments;
  Task task = a.chunks.task(blockIdx.x, heads, false);
  if (common) task.chunk.rows = chunk_rows;
  if (task.chunk.rows == 0) return;
  const int tiles = common ? 2 : static_cast<int>((static_cast<unsigned>(a.value_dim) + 63) / 64);
  const Block<E, padded_k, common> block{a,         maps,      memory, task.chunk,
                                         task.slot, task.head, tiles,  common ? 1 : members};
  dependency_wait();
  dependency_launch();  // the second kernel's first blocks load what they do not get from here
  // One warp starts all loads, in the order of their use: loads that were started beside them would delay the first.
  if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 0) {
    if (elected()) {
      block.prepare_barriers();
#if defined(DELTAPORT_BULK_COPY)
      barriers_publish();
      block.start_all(block.whole());
#endif
    }
  }
  __syncthreads();
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
  const auto kernel =
      is_common<padded_k>(a) ? gdn2_gradients<E, padded_k, true> : gdn2_gradients<E, padded_k, false>;
  return launch(kernel, a.chunks.grid(a.gate_heads), threads, Layout<padded_k>::bytes, Start::beside_previous,
                stream, a, maps, Divisor(a.gate_heads), a.value_heads / a.gate_heads);
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
