// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn_gradients.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn_gradients_block.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

using namespace gradients;

template <class E, int padded_k>
struct Block : BlockBase<E, padded_k> {
  using Base = BlockBase<E, padded_k>;
  using L = Layout<padded_k>;
  using Base::a;
  using Base::at;
  using Base::chunk;
  using Base::factor;
  using Base::gram;
  using Base::group;
  using Base::key_head;
  using Base::load_all;
  using Base::maps;
  using Base::memory;
  using Base::slot;
  using Base::steps;
  using Base::sum;
  using Base::tiles;
  using Base::value_tile;
  using Base::wait;

  /// First group: dq, N, dP.
  __device__ void queries() const {
    const int warp = threadIdx.x / 32, row = own_row(warp);
    float dq[padded_k / 2];
    clear(dq);
    float before[2] = {0.0f, 0.0f};
    for (int member = 0; member < group; ++member) {
      const int head = key_head * group + member;
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
      wait(loaded_rest, member);
      float dot[2] = {0.0f, 0.0f}, sums[2] = {0.0f, 0.0f};
      for_elements<E, steps>(at(L::q), warp, [&](int j, int part, float x) { dot[part] += dq[j] * x; });
      sum_quads(dot);
      sum_scores(sums, d_r, warp, row);
      sum_quads(sums);
      if (threadIdx.x % 4 == 0) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          sum(sum_query)[row + 8 * part] =
              query_norm[row + 8 * part] * (dot[part] - before[part]) + sums[part];
        }
      }
      named_barrier<sync_all, threads>();

      std::uint32_t operand[4][4];
      for_entries([&](int j, int part, int column) {
        const float difference = decay[row + 8 * part] - decay[column];
        const float d = a.activations.scale * exp2_fast(difference > 0.0f ? 0.0f : difference);
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
      add<E, Tile::by_columns>(dq, operand, at(L::k));
      if (member + 1 < group) {
        float after[2] = {0.0f, 0.0f};
        for_elements<E, steps>(at(L::q), warp, [&](int j, int part, float x) { after[part] += dq[j] * x; });
        sum_quads(after);
        before[0] = after[0], before[1] = after[1];
      } else {
        this->template finish_rows<sync_queries>(dq, at(L::q), query_norm, value_tile(0, L::s), a.dq,
                                                 maps.dq);
      }
      end_of_head(member);
    }
  }
  /// Y of a value tile is there. Two barriers, or the fourth group could arrive twice before the others come once.
  __device__ static void wait_y(int tile) {
    if (tile % 2 == 0) {
      named_barrier<sync_y, 3 * group_threads>();
    } else {
      named_barrier<sync_y_odd, 3 * group_threads>();
    }
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
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          float& x = columns[half][side];
#pragma unroll
          for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
          if (lane < 4) sum(sum_column + warp)[16 * s + 8 * half + 2 * lane + side] = x;
        }
      }
    }
  }

  /// Second group: dk, dv.
  __device__ void keys() const {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, row = own_row(warp);
    load_all(key_head * group, true);
    float dk[padded_k / 2];
    clear(dk);
    for (int member = 0; member < group; ++member) {
      const int head = key_head * group + member;
      wait(loaded_keys, member);
      const float *beta = factor(factor_beta), *decay = factor(factor_decay);
      const float scale[2] = {-beta[row] * exp2_fast(decay[row]), -beta[row + 8] * exp2_fast(decay[row + 8])};
      this->template for_values<Loads::own>(head, member, [&](int tile) {
        std::uint32_t d_y[4][4];
        load_rows(d_y, value_tile(tile, L::d_y), warp);
        scale_rows<E>(d_y, scale);
        add<E, Tile::by_columns>(dk, d_y, value_tile(tile, L::s));
        write_values_gradient(head, tile, beta, thread);
      });
      wait(loaded_rest, member);
      named_barrier<sync_all, threads>();

      add_left_parts<E, Tile::by_rows, Tile::by_columns>(dk, at(L::inverse), at(L::d_x), true);
      named_barrier<sync_m, 2 * group_threads>();
      add_tiles<E, Tile::by_columns, Tile::by_columns>(dk, at(L::m), at(L::q));
      named_barrier<sync_h, 2 * group_threads>();
      add_all(dk, [&] {
        multiply_tiles<E, Tile::by_rows, Tile::by_columns, 4>(dk, at(L::h), at(L::k), true);
        multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(dk, at(L::h) + panel_bytes, at(L::k), true);
      });
      if (member + 1 == group) {
        this->template finish_rows<sync_keys>(dk, at(L::k), factor(factor_key_norm), value_tile(0, L::d_s),
                                              a.dk, maps.dk);
      }
      end_of_head<Loads::own>(member);
    }
  }
  /// dv = beta o dY.
  __device__ void write_values_gradient(int head, int tile, const float* beta, int thread) const {
    const TensorTiles dv{a.dv, a.value_heads, a.value_dim};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int index = step * group_threads + thread, r = index / 8, c = (index % 8) * 8;
      if (r < chunk.rows && 64 * tile + c < a.value_dim) {
        uint4 x = load_shared16(value_tile(tile, L::d_y) + unit_offset(r, c));
        scale_unit<E>(x, beta[r]);
        *reinterpret_cast<uint4*>(const_cast<char*>(dv.at(chunk.row + r, head, 64 * tile + c))) = x;
      }
    }
  }

  /// Third group: <S, dS'>; dX, rounded with its decay for dk and without for the inverse; t, its products with X.
  __device__ void writes() const {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, row = own_row(warp);
    for (int member = 0; member < group; ++member) {
      const int head = key_head * group + member;
      float d_x[padded_k / 2], states = 0.0f;
      clear(d_x);
      wait(loaded_keys, member);
      const float* const decay = factor(factor_decay);
      this->for_values(head, member, [&](int tile) {
#pragma unroll 2
        for (int i = 0; i < L::wide / 16 / group_threads; ++i) {
          const int offset = (i * group_threads + thread) * 16;
          states += dot_units<E>(load_shared16(value_tile(tile, L::s) + offset),
                                 load_shared16(value_tile(tile, L::d_s) + offset));
        }
        wait_y(tile);
        add_tiles<E, Tile::by_rows, Tile::by_columns>(d_x, value_tile(tile, L::v), value_tile(tile, L::d_s));
      });
      states = sum_warp(states);
      if (thread % 32 == 0) sum(sum_states)[warp] = states;
      wait(loaded_rest, member);
      float through[2] = {0.0f, 0.0f};
      for_elements<E, steps>(at(L::x), warp, [&](int j, int part, float x) { through[part] += d_x[j] * x; });
      sum_quads(through);
      if (thread % 4 == 0) sum(sum_row_x)[row] = through[0], sum(sum_row_x)[row + 8] = through[1];
      const float last = decay[63];
      const float c[2] = {exp2_fast(last - decay[row]), exp2_fast(last - decay[row + 8])};
      std::uint32_t plain[steps][4];
      as_operand<E>(plain, d_x);
      scale_rows(d_x, c);
      store_rows<E>(at(L::d_x), d_x, warp);
      fence_async_proxy();
      named_barrier<sync_all, threads>();  // nobody reads the value tiles any more

#pragma unroll
      for (int s = 0; s < steps; ++s) store_a(plain_d_x(), 16 * warp, 16 * s, plain[s]);
      fence_async_proxy();
      named_arrive<sync_e, 2 * group_threads>();
      end_of_head(member);
    }
  }
  /// Where dX lies, without decays.
  __device__ std::uint32_t plain_d_x() const {
    return value_tile(1, L::s);
  }

  /// Fourth group: Y, the 64 x 64 matrices, the gates.
  __device__ void gates() const {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, row = own_row(warp);
    for (int member = 0; member < group; ++member) {
      const int head = key_head * group + member;
      float sums[2] = {0.0f, 0.0f}, dbeta[2] = {0.0f, 0.0f};
      wait(loaded_keys, member);
      float kk[32];
      values_and_scores(kk, head, member, sums, dbeta, warp, row);
      wait(loaded_rest, member);
      named_barrier<sync_all, threads>();  // the others have what they wait for
      inverse_gradient(kk, dbeta, warp, row);
      sum_quads(sums);
      sum_quads(dbeta);
      if (thread % 4 == 0) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          sum(sum_row)[row + 8 * part] = sums[part];
          sum(sum_beta)[row + 8 * part] = dbeta[part];
        }
      }
      named_barrier<sync_gates_group, group_threads>();
      if (thread < 64) write_gates(head, thread);
      end_of_head(member);
    }
  }

  /// Over the value tiles: Y, dR; K K^T, since there is time.
  __device__ void values_and_scores(float (&kk)[32], int head, int member, float (&sums)[2],
                                    float (&dbeta)[2], int warp, int row) const {
    const float *decay = factor(factor_decay), *beta = factor(factor_beta),
                *key_norm = factor(factor_key_norm);
    const float b[2] = {beta[row], beta[row + 8]};
    const float seen[2] = {exp2_fast(decay[row]) * key_norm[row],
                           exp2_fast(decay[row + 8]) * key_norm[row + 8]};
    float d_r[32];
    clear(d_r);
    this->for_values(head, member, [&](int tile) {
      float y[32];
      gram(y, at(L::k), value_tile(tile, L::s));
      std::uint32_t operand[4][4];
      {
        std::uint32_t v[4][4], d_y[4][4];
        load_rows(v, value_tile(tile, L::v), warp);
        load_rows(d_y, value_tile(tile, L::d_y), warp);
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int part = i % 2, j = 8 * s + 2 * i;
            const float2 value = unpack<E>(v[s][i]), gradient = unpack<E>(d_y[s][i]);
            const float old[2] = {seen[part] * y[j], seen[part] * y[j + 1]};
            const float z[2] = {value.x - old[0], value.y - old[1]};
            dbeta[part] += gradient.x * z[0] + gradient.y * z[1];
            sums[part] -= b[part] * (gradient.x * old[0] + gradient.y * old[1]);
            operand[s][i] = pack<E>(b[part] * z[0], b[part] * z[1]);
          }
        }
      }
#pragma unroll
      for (int s = 0; s < 4; ++s) store_a(value_tile(tile, L::v), 16 * warp, 16 * s, operand[s]);
      fence_async_proxy();
      if (tile % 2 == 0) {  // see wait_y
        named_arrive<sync_y, 3 * group_threads>();
      } else {
        named_arrive<sync_y_odd, 3 * group_threads>();
      }
      named_barrier<sync_gates_group, group_threads>();
      add_tiles<E, Tile::by_rows, Tile::by_rows>(d_r, value_tile(tile, L::d_o), value_tile(tile, L::v));
    });

    store_rows<E>(at(L::d_r), d_r, warp);
    fence_async_proxy();
    clear(kk);
    add_tiles<E, Tile::by_rows, Tile::by_rows, steps>(kk, at(L::k), at(L::k));
  }

  /// Through the inverse to L, from there H and dbeta. With dA = P^T dRu + K dXu^T, A^T dA is D o (R^T dR + X dX^T) below
  /// the diagonal, and nothing else of it counts.
  __device__ void inverse_gradient(const float (&kk)[32], float (&dbeta)[2], int warp, int row) const {
    const float *beta = factor(factor_beta), *key_norm = factor(factor_key_norm),
                *decay = factor(factor_decay);
    const std::uint32_t high = at(L::inverse), low = high + panel_bytes;
    named_barrier<sync_e, 2 * group_threads>();  // dX is there
    std::uint32_t upper[4][4], rest[4][4];
    float z[32], d_a[32];
    clear(z);
    add_all(z, [&] {
      multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(z, at(L::r), at(L::d_r), true);
      multiply_tiles<E, Tile::by_rows, Tile::by_rows, steps>(z, at(L::x), plain_d_x(), true);
    });
    for_entries([&](int j, int part, int column) {
      const float difference = decay[row + 8 * part] - decay[column];
      z[j] = column < row + 8 * part ? z[j] * exp2_fast(difference > 0.0f ? 0.0f : difference) : 0.0f;
    });
    split_operand<E>(upper, rest, z);
    clear(d_a);
    add_all(d_a, [&] {
      multiply<E, Tile::by_rows>(d_a, upper, high, true);
      multiply<E, Tile::by_rows>(d_a, upper, low, true);
      multiply<E, Tile::by_rows>(d_a, rest, high, true);
    });

    float h[32];
    for_entries([&](int j, int part, int column) {
      const float d_l = column < row + 8 * part ? -d_a[j] : 0.0f;
      dbeta[part] += d_l * kk[j] * key_norm[row + 8 * part] * key_norm[column];
      h[j] = beta[row + 8 * part] * d_l * key_norm[column];
      d_a[j] = beta[row + 8 * part] * d_l * key_norm[row + 8 * part];
    });
    named_barrier<sync_gates_group, group_threads>();  // all have read X, which H replaces
    store_rows<E>(at(L::h), h, warp);
    store_rows<E>(at(L::h) + panel_bytes, d_a, warp);
    fence_async_proxy();
    named_arrive<sync_h, 2 * group_threads>();
  }

  /// dg and dbeta of row t by threads 0 to 63.
  __device__ void write_gates(int head, int t) const {
    float through_x = sum(sum_row_x)[t], column = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; ++w) column += sum(sum_column + w)[t];
    if (t == chunk.rows - 1) through_x = 0.0f;  // no decay between it and the state
    float d_sum = sum(sum_query)[t] + sum(sum_row)[t] - column - through_x;
    // What depends on the decay of the whole chunk belongs to the last row.
    float* const shared = sum(sum_states) + 8;
    float total = sum_warp(through_x);
    if (t % 32 == 0) shared[t / 32] = total;
    named_barrier<sync_sums, 64>();
    if (t == 63) {
      const float* states = sum(sum_states);
      d_sum += shared[0] + shared[1] +
               exp2_fast(factor(factor_decay)[63]) * (states[0] + states[1] + states[2] + states[3]);
    }
    // Suffix sums.
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float above = __shfl_down_sync(0xffffffffu, d_sum, step);
      if (t % 32 + step < 32) d_sum += above;
    }
    if (t == 32) shared[2] = d_sum;
    named_barrier<sync_sums, 64>();
    if (t < 32) d_sum += shared[2];
    write_gate_gradients<E>(a, chunk, slot, head, t, d_sum, sum(sum_beta)[t], shared + 4);
  }

  /// All groups have read everything of a head: the next may be loaded.
  template <Loads loads = Loads::others>
  __device__ void end_of_head(int member) const {
    if (member + 1 == group) return;
    fence_async_proxy();
    named_barrier<sync_all, threads>();
    if constexpr (loads == Loads::own) load_all(key_head * group + member + 1, false);
  }
};

template <class E, int padded_k>
__global__ void __launch_bounds__(threads, 1)
    gdn_gradients(const GdnGradients a, const __grid_constant__ GdnGradientMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::int64_t slot = a.chunks.in_time(blockIdx.x / a.key_heads, false);
  const Chunk chunk = a.chunks.at(slot);
  if (chunk.rows == 0) return;
  const Block<E, padded_k> block{{a, maps, memory, slot, chunk, static_cast<int>(blockIdx.x % a.key_heads),
                                  a.value_heads / a.key_heads, (a.value_dim + 63) / 64}};
  if (threadIdx.x == 0) {
    for (int i = 0; i < barrier_count; ++i) {
#if defined(DELTAPORT_BULK_COPY)
      barrier_init(block.barrier(i), group_threads + 1);
#else
      barrier_init(block.barrier(i), group_threads);
#endif
    }
  }
  __syncthreads();
  dependency_wait();
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
  const dim3 grid(static_cast<unsigned>(a.chunks.slots() * a.key_heads));
  return launch(gdn_gradients<E, padded_k>, grid, gradients::threads, gradients::Layout<padded_k>::bytes,
                Start::beside_previous, stream, a, maps);
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
