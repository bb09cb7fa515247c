// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn_gradients.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn_gradients_block.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

using namespace gradients;

template <class E, int padded_k, Case which>
struct Block : BlockBase<E, padded_k, which> {
  using Base = BlockBase<E, padded_k, which>;
  using L = Layout<padded_k>;
  using Base::a;
  using Base::add_states;
  using Base::arrive_d_y;
  using Base::arrive_y;
  using Base::at;
  using Base::chunk;
  using Base::factor;
  using Base::float_d_r;
  using Base::group;
  using Base::h_tile;
  using Base::key_head;
  using Base::load_first;
  using Base::maps;
  using Base::memory;
  using Base::plain_d_x;
  using Base::slot;
  using Base::steps;
  using Base::store_scaled;
  using Base::sum;
  using Base::tiles;
  using Base::value_tile;
  using Base::wait;
  using Base::wait_d_states;
  using Base::wait_d_y;
  using Base::wait_y;
  using Base::write_gates;
  using Base::write_values_gradient;

  /// First group: dq, dP.
  __device__ void queries() const {
    const int warp = threadIdx.x / 32, row = own_row(warp);
    float dq[padded_k / 2];
    clear(dq);
    float before[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int member = 0; member < group(); ++member) {
      const int head = key_head * group() + member;
      wait(loaded_keys, member);
      const float *query_norm = factor(factor_query_norm), *key_norm = factor(factor_key_norm);
      const float* decay = factor(factor_decay);
      const float scale[2] = {a.activations.scale * exp2_fast(decay[row]),
                              a.activations.scale * exp2_fast(decay[row + 8])};
      float d_r[32];
      clear(d_r);
      this->for_values(head, member, [&](int tile) {
        std::uint32_t d_o[4][4];
        load_rows(d_o, value_tile(tile, L::d_o), warp);
        scale_rows<E>(d_o, scale);
        add<E, Tile::by_columns>(dq, d_o, value_tile(tile, L::s));
        wait_y(tile);
        add_tiles<E, Tile::by_rows, Tile::by_rows>(d_r, value_tile(tile, L::d_o), value_tile(tile, L::v));
      });
      named_arrive<sync_e, 3 * group_threads>();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float* const x = &d_r[4 * i];
        store_shared16(float_d_r(i, threadIdx.x), make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                             __float_as_uint(x[2]), __float_as_uint(x[3])));
      }
      named_arrive<sync_n, 2 * group_threads>();
      wait(loaded_inverse, member);
      std::uint32_t operand[4][4];
      for_entries([&](int j, int part, int column) {
        const float d = a.activations.scale * exp2_fast(decay[row + 8 * part] - decay[column]);
        d_r[j] = column <= row + 8 * part ? d * d_r[j] : 0.0f;
      });
      as_operand<E>(operand, d_r);
      clear(d_r);  // now dP
      add_all(d_r, [&] {
        multiply<E, Tile::by_rows>(d_r, operand, at(L::inverse), true);
        multiply<E, Tile::by_rows>(d_r, operand, at(L::inverse) + panel_bytes, true);
      });
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        std::uint32_t m[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int j = 8 * s + 2 * i, column = entry_column(j), own = row + 8 * (i % 2);
          const float x = column <= own ? d_r[j] : 0.0f, y = column + 1 <= own ? d_r[j + 1] : 0.0f;
          m[i] = pack<E>(query_norm[own] * x, query_norm[own] * y);
          operand[s][i] = pack<E>(key_norm[column] * x, key_norm[column + 1] * y);
        }
        store_a(at(L::m), 16 * warp, 16 * s, m);
      }
      fence_async_proxy();
      named_arrive<sync_m, 2 * group_threads>();
      float dot[2] = {0.0f, 0.0f};
      wait(loaded_queries, 0);
      for_elements<E, steps>(at(L::q), warp, [&](int j, int part, float x) { dot[part] += dq[j] * x; });
      sum_quads(dot);
      if (threadIdx.x % 4 == 0) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          sum(sum_query)[row + 8 * part] = query_norm[row + 8 * part] * (dot[part] - before[part]);
        }
      }
      named_arrive<sync_scores, 3 * group_threads>();
      add<E, Tile::by_columns>(dq, operand, at(L::k));
      named_barrier<sync_read, 3 * group_threads>();
      if (member + 1 < group()) {
        float after[2] = {0.0f, 0.0f};
        for_elements<E, steps>(at(L::q), warp, [&](int j, int part, float x) { after[part] += dq[j] * x; });
        sum_quads(after);
        before[0] = after[0], before[1] = after[1];
      }
      end_of_head(member);
    }
    this->template finish_rows<sync_read>(dq, at(L::q), factor(factor_query_norm),
                                          value_tile(tiles + 1, L::s), a.dq, maps.dq);
  }
  /// Sums of N = dR o R over rows (of one lane) and columns: the same number in both, where they cancel. A row with itself
  /// has no decay.
  __device__ void sum_scores(float (&rows)[2], const float (&d_r)[32], int warp, int row) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t r[4];
      load_a(r, at(L::r), 16 * warp, 16 * s);
      float columns[2][2] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 8 * s + 2 * i, column = entry_column(j), own = row + 8 * (i % 2);
        const float2 pair = unpack<E>(r[i]);
        const float x = column < own ? pair.x * d_r[j] : 0.0f,
                    y = column + 1 < own ? pair.y * d_r[j + 1] : 0.0f;
        rows[i % 2] += x + y;
        columns[i / 2][0] += x, columns[i / 2][1] += y;
      }
      // Over the eight lanes with the same columns; of the four columns each lane keeps one half, then a quarter.
      const bool second = lane & 4, fourth = lane & 8;
      float kept[2];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float own = second ? columns[1][side] : columns[0][side],
                    other = second ? columns[0][side] : columns[1][side];
        kept[side] = own + __shfl_xor_sync(0xffffffffu, other, 4);
      }
      float x = fourth ? kept[1] : kept[0];
      x += __shfl_xor_sync(0xffffffffu, fourth ? kept[0] : kept[1], 8);
      x += __shfl_xor_sync(0xffffffffu, x, 16);
      if (lane < 16)
        sum(sum_column + warp)[16 * s + (second ? 8 : 0) + 2 * (lane & 3) + (fourth ? 1 : 0)] = x;
    }
  }

  /// Second group: dk, dv.
  __device__ void keys() const {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, row = own_row(warp);
    load_first();
    float dk[padded_k / 2];
    clear(dk);
    for (int member = 0; member < group(); ++member) {
      const int head = key_head * group() + member;
      wait(loaded_keys, member);
      const float *beta = factor(factor_beta), *decay = factor(factor_decay);
      const float scale[2] = {-beta[row] * exp2_fast(decay[row]), -beta[row + 8] * exp2_fast(decay[row + 8])};
      this->template for_values<true>(head, member, [&](int tile) {
        arrive_y(tile);
        wait_d_y(tile);
        std::uint32_t d_y[4][4];
        load_rows(d_y, value_tile(tile, L::d_y), warp);
        scale_rows<E>(d_y, scale);
        add<E, Tile::by_columns>(dk, d_y, value_tile(tile, L::s));
        write_values_gradient(head, tile, beta, thread);
      });
      named_arrive<sync_read, 3 * group_threads>();
      wait(loaded_inverse, member);
      named_barrier<sync_d, 2 * group_threads>();

      add_left_parts<E, Tile::by_rows, Tile::by_columns>(dk, at(L::inverse), at(L::d_x), true);
      wait(loaded_queries, 0);
      named_barrier<sync_m, 2 * group_threads>();
      add_tiles<E, Tile::by_columns, Tile::by_columns>(dk, at(L::m), at(L::q));
      named_barrier<sync_h, 2 * group_threads>();
      const std::uint32_t h = h_tile();
      add_all(dk, [&] {
        multiply_tiles<E, Tile::by_rows, Tile::by_columns, 4>(dk, h, at(L::k), true);
        multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(dk, h + panel_bytes, at(L::k), true);
      });
      end_of_head<true>(member);
    }
    this->template finish_rows<sync_h>(dk, at(L::k), factor(factor_key_norm), value_tile(tiles, L::d_s), a.dk,
                                       maps.dk);
  }
  /// Third group: dX, rounded with its decay for dk and without for the inverse; t, its products with X; <S, dS'>; N.
  __device__ void writes() const {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, row = own_row(warp);
    for (int member = 0; member < group(); ++member) {
      const int head = key_head * group() + member;
      float d_x[padded_k / 2], states = 0.0f;
      clear(d_x);
      wait(loaded_keys, member);
      const float* const decay = factor(factor_decay);
      this->template for_values<false, Turns::unrolled>(head, member, [&](int tile) {
        wait_y(tile);
        wait_d_states(tile, member);
        add_tiles<E, Tile::by_rows, Tile::by_columns>(d_x, value_tile(tile, L::v), value_tile(tile, L::d_s));
        if (tile + 1 < tiles) add_states(states, tile, thread);  // there is time before the next Y comes
      });
      store_rows<E>(plain_d_x(), d_x, warp);
      fence_async_proxy();
      named_arrive<sync_e, 3 * group_threads>();
      const float last = decay[63];
      store_scaled(at(L::d_x), d_x, exp2_fast(last - decay[row]), exp2_fast(last - decay[row + 8]), warp);
      fence_async_proxy();
      named_arrive<sync_d, 2 * group_threads>();
      wait(loaded_products, member);
      float through[2] = {0.0f, 0.0f};
      for_elements<E, steps>(at(L::x), warp, [&](int j, int part, float x) { through[part] += d_x[j] * x; });
      sum_quads(through);
      if (thread % 4 == 0) sum(sum_row_x)[row] = through[0], sum(sum_row_x)[row + 8] = through[1];
      add_states(states, tiles - 1, thread);
      named_arrive<sync_read, 3 * group_threads>();
      states = sum_warp(states);
      if (thread % 32 == 0) sum(sum_states)[warp] = states;
      named_barrier<sync_n, 2 * group_threads>();
      float d_r[32], scores[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint4 x = load_shared16(float_d_r(i, thread));
        d_r[4 * i] = __uint_as_float(x.x), d_r[4 * i + 1] = __uint_as_float(x.y);
        d_r[4 * i + 2] = __uint_as_float(x.z), d_r[4 * i + 3] = __uint_as_float(x.w);
      }
      sum_scores(scores, d_r, warp, row);
      sum_quads(scores);
      if (thread % 4 == 0) sum(sum_score)[row] = scores[0], sum(sum_score)[row + 8] = scores[1];
      named_arrive<sync_scores, 3 * group_threads>();
      end_of_head(member);
    }
  }
  /// Fourth group: Y, dY, the 64 x 64 matrices, the gates.
  __device__ void gates() const {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, row = own_row(warp);
    for (int member = 0; member < group(); ++member) {
      const int head = key_head * group() + member;
      float sums[2] = {0.0f, 0.0f}, dbeta[2] = {0.0f, 0.0f};
      wait(loaded_keys, member);
      float kk[32];
      values(head, member, kk, sums, dbeta, warp, row);
      inverse_gradient(member, kk, dbeta, warp, row);
      sum_quads(sums);
      sum_quads(dbeta);
      if (thread % 4 == 0) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          sum(sum_row)[row + 8 * part] = sums[part];
          sum(sum_beta)[row + 8 * part] = dbeta[part];
        }
      }
      named_barrier<sync_scores, 3 * group_threads>();
      named_barrier<sync_gates_group, group_threads>();
      if (thread < 64) write_gates(head, thread);
      end_of_head(member);
    }
  }

  /// Over the value tiles: Y, dY; dR, to its tile; K K^T.
  __device__ void values(int head, int member, float (&kk)[32], float (&sums)[2], float (&dbeta)[2], int warp,
                         int row) const {
    const float *decay = factor(factor_decay), *beta = factor(factor_beta),
                *key_norm = factor(factor_key_norm);
    const float b[2] = {beta[row], beta[row + 8]};
    const float seen[2] = {exp2_fast(decay[row]) * key_norm[row],
                           exp2_fast(decay[row + 8]) * key_norm[row + 8]};
    float d_r[32];
    clear(d_r);
    this->template for_values<false, Turns::hidden>(head, member, [&](int tile) {
      float y[32];  // K S, then what the state has for a row
      std::uint32_t v[4][4];
      add_all(
          y,
          [&] {
            multiply_tiles<E, Tile::by_rows, Tile::by_rows, steps>(y, at(L::k), value_tile(tile, L::s),
                                                                   false);
          },
          [&] { load_rows(v, value_tile(tile, L::v), warp); });
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        std::uint32_t operand[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int part = i % 2, j = 8 * s + 2 * i;
          const float2 value = unpack<E>(v[s][i]);
          y[j] *= seen[part], y[j + 1] *= seen[part];
          operand[i] = pack<E>(b[part] * (value.x - y[j]), b[part] * (value.y - y[j + 1]));
        }
        store_a(value_tile(tile, L::v), 16 * warp, 16 * s, operand);
      }
      fence_async_proxy();
      arrive_y(tile);
      named_barrier<sync_gates_group, group_threads>();
      add_tiles<E, Tile::by_rows, Tile::by_rows>(d_r, value_tile(tile, L::d_o), value_tile(tile, L::v));
      if (tile == 0) wait(loaded_products, member);
      wait_d_states(tile, member);
      float d_y[32];
      add_all(d_y, [&] {
        multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(d_y, at(L::r), value_tile(tile, L::d_o),
                                                                 false);
        multiply_tiles<E, Tile::by_rows, Tile::by_rows, steps>(d_y, at(L::x), value_tile(tile, L::d_s), true);
      });
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        std::uint32_t rounded[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) rounded[i] = pack<E>(d_y[8 * s + 2 * i], d_y[8 * s + 2 * i + 1]);
        store_a(value_tile(tile, L::d_y), 16 * warp, 16 * s, rounded);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int part = i % 2, j = 8 * s + 2 * i;
          const float2 value = unpack<E>(v[s][i]), gradient = unpack<E>(rounded[i]);
          dbeta[part] += gradient.x * (value.x - y[j]) + gradient.y * (value.y - y[j + 1]);
          sums[part] -= b[part] * (gradient.x * y[j] + gradient.y * y[j + 1]);
        }
      }
      arrive_d_y(tile);
    });
    store_rows<E>(at(L::d_r), d_r, warp);
    fence_async_proxy();
    clear(kk);
    add_tiles<E, Tile::by_rows, Tile::by_rows, steps>(kk, at(L::k), at(L::k));
    named_barrier<sync_gates_group, group_threads>();
  }

  /// Through the inverse to L, from there H and dbeta. With dA = P^T dRu + K dXu^T, A^T dA is D o (R^T dR + X dX^T) below
  /// the diagonal, and nothing else of it counts.
  __device__ void inverse_gradient(int member, float (&kk)[32], float (&dbeta)[2], int warp, int row) const {
    const float *beta = factor(factor_beta), *key_norm = factor(factor_key_norm),
                *decay = factor(factor_decay);
    const std::uint32_t high = at(L::inverse), low = high + panel_bytes;
    const float own_norm[2] = {key_norm[row], key_norm[row + 8]}, own_decay[2] = {decay[row], decay[row + 8]};
    float z[32], decays[32];
    clear(z);
    add_all(
        z, [&] { multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(z, at(L::r), at(L::d_r), true); },
        [&] {
          for_entries([&](int j, int part, int column) {
            decays[j] = column < row + 8 * part ? exp2_fast(own_decay[part] - decay[column]) : 0.0f;
          });
        });
    named_barrier<sync_e, 3 * group_threads>();  // dX is there
    add_tiles<E, Tile::by_rows, Tile::by_rows, steps>(z, at(L::x), plain_d_x());
#pragma unroll
    for (int j = 0; j < 32; ++j) z[j] *= decays[j];
    std::uint32_t upper[4][4], rest[4][4];
    float d_a[32];
    split_operand<E>(upper, rest, z);
    clear(d_a);
    wait(loaded_inverse, member);
    float norms[16];
    add_all(
        d_a,
        [&] {
          multiply<E, Tile::by_rows>(d_a, upper, high, true);
          multiply<E, Tile::by_rows>(d_a, upper, low, true);
          multiply<E, Tile::by_rows>(d_a, rest, high, true);
        },
        [&] {
#pragma unroll
          for (int i = 0; i < 16; ++i) norms[i] = key_norm[entry_column(4 * (i / 2) + i % 2)];
        });

    const float factors[2] = {-beta[row], -beta[row + 8]};
    const std::uint32_t to = h_tile();
    for_entries([&](int j, int part, int column) { d_a[j] = column < row + 8 * part ? d_a[j] : 0.0f; });
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t h[4], transposed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = 8 * s + 2 * i, part = i % 2;
        const float x = factors[part] * d_a[j], y = factors[part] * d_a[j + 1];
        h[i] = pack<E>(x * norms[j / 4 * 2], y * norms[j / 4 * 2 + 1]);
        transposed[i] = pack<E>(x * own_norm[part], y * own_norm[part]);
      }
      store_a(to, 16 * warp, 16 * s, h);
      store_a(to + panel_bytes, 16 * warp, 16 * s, transposed);
    }
    fence_async_proxy();
    named_arrive<sync_h, 2 * group_threads>();
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int part = entry_part(j);
      dbeta[part] -= d_a[j] * kk[j] * own_norm[part] * norms[j / 4 * 2 + j % 2];
    }
  }

  /// All groups have read everything of a head: the next may be loaded.
  template <bool loads = false>
  __device__ void end_of_head(int member) const {
    if (member + 1 == group()) return;
    fence_async_proxy();
    named_barrier<sync_all, threads>();
    if constexpr (loads) this->load_head(key_head * group() + member + 1);
  }
};

template <class E, int padded_k, Case which>
__global__ void __launch_bounds__(threads, 1)
    gdn_gradients(const __grid_constant__ GdnGradients arguments,
                  const __grid_constant__ GdnGradientMaps maps, const Divisor heads, int group) {
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr bool common = which == Case::common;
  GdnGradients known;
  if (common) known = know_common<padded_k>(arguments);
  const GdnGradients& a = common ? known : arguments;
  Task task = a.chunks.task(blockIdx.x, heads, false);
  if (common) {  // all from one number of 32 bits
    task.slot = static_cast<std::uint32_t>(task.slot);
    task.chunk = {task.slot * chunk_rows, chunk_rows};
  }
  if (task.chunk.rows == 0) return;
  const int tiles = static_cast<int>((static_cast<unsigned>(a.value_dim) + 63) / 64);
  const Block<E, padded_k, which> block{{a, maps, memory, task.slot, task.chunk, task.head, group, tiles}};
  dependency_wait();
  // One warp starts all loads, in the order of their use: loads that were started beside them would delay the first.
  if (__shfl_sync(0xffffffffu, threadIdx.x / 32, 0) == 0) {
    if (elected()) {
      block.prepare_barriers();
#if defined(DELTAPORT_BULK_COPY)
      fence_async_proxy();
      block.start_head(task.head * block.group(), true, block.whole());
#endif
    }
  }
  __syncthreads();
  const int role = __shfl_sync(0xffffffffu, threadIdx.x / group_threads, 0);
  if (role == 0) {
    registers_take<144>();
    block.queries();
  } else if (role == 1) {
    registers_give<112>();
    block.keys();
  } else if (role == 2) {
    registers_give<104>();
    block.writes();
  } else {
    registers_take<152>();
    block.gates();
  }
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn_gradients(const GdnGradients& a, const GdnGradientMaps& maps, cudaStream_t stream) {
  const int group = a.value_heads / a.key_heads;
  const auto kernel = is_common<padded_k>(a) ? gdn_gradients<E, padded_k, Case::common>
                      : group == 1           ? gdn_gradients<E, padded_k, Case::single>
                                             : gdn_gradients<E, padded_k, Case::grouped>;
  return launch(kernel, a.chunks.grid(a.key_heads), gradients::threads, gradients::Layout<padded_k>::bytes,
                Start::beside_previous, stream, a, maps, Divisor(a.key_heads), group);
}

template cudaError_t launch_gdn_gradients<Bf16, 64>(const GdnGradients&, const GdnGradientMaps&,
                                                    cudaStream_t);
template cudaError_t launch_gdn_gradients<Bf16, 128>(const GdnGradients&, const GdnGradientMaps&,
                                                     cudaStream_t);
template cudaError_t launch_gdn_gradients<Half, 64>(const GdnGradients&, const GdnGradientMaps&,
                                                    cudaStream_t);
template cudaError_t launch_gdn_gradients<Half, 128>(const GdnGradients&, const GdnGradientMaps&,
                                                     cudaStream_t);

}  // namespace deltaport::recurrence::cuda
