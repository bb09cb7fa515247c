// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/wgmma.cuh"

/// Work on accumulators of 64 rows shared by four warps: warp w holds rows 16 w to 16 w + 15, a lane its rows own_row(w)
/// and own_row(w) + 8 ("parts" 0 and 1). Register j of a lane is column entry_column(j).
namespace deltaport::recurrence::cuda {

__device__ __forceinline__ int own_row(int warp) {
  return 16 * warp + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int entry_part(int j) {
  return j / 2 % 2;
}
__device__ __forceinline__ int entry_column(int j) {
  return 8 * (j / 4) + 2 * (threadIdx.x % 4) + j % 2;
}

/// Before a loop that accumulates: a product that ignores its accumulator would leave it alive through outer loops.
template <int n>
__device__ __forceinline__ void clear(float (&d)[n]) {
#pragma unroll
  for (int j = 0; j < n; ++j) d[j] = 0.0f;
}
/// body(j, part, column) for the 32 registers of a 64 x 64 accumulator.
template <class Body>
__device__ __forceinline__ void for_entries(Body body) {
#pragma unroll
  for (int j = 0; j < 32; ++j) body(j, entry_part(j), entry_column(j));
}
/// body(j, part, x): x is the element of `tile` (64 rows, 16 `steps` columns) at the place of register j.
template <class E, int steps, class Body>
__device__ __forceinline__ void for_elements(std::uint32_t tile, int warp, Body body) {
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    std::uint32_t x[4];
    load_a(x, tile, 16 * warp, 16 * s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack<E>(x[i]);
      body(8 * s + 2 * i, i % 2, pair.x);
      body(8 * s + 2 * i + 1, i % 2, pair.y);
    }
  }
}

/// Register operand: this warp's rows of a tile.
template <int steps>
__device__ __forceinline__ void load_rows(std::uint32_t (&operand)[steps][4], std::uint32_t tile, int warp) {
#pragma unroll
  for (int s = 0; s < steps; ++s) load_a(operand[s], tile, 16 * warp, 16 * s);
}
/// Register operand: this warp's columns of a 64 x 64 tile, as rows of its transpose.
__device__ __forceinline__ void load_columns(std::uint32_t (&operand)[4][4], std::uint32_t tile, int warp) {
#pragma unroll
  for (int s = 0; s < 4; ++s) load_a_transposed(operand[s], tile, 16 * s, 16 * warp);
}
/// This warp's rows of an accumulator, rounded, to a tile.
template <class E, int n>
__device__ __forceinline__ void store_rows(std::uint32_t tile, const float (&d)[n], int warp) {
#pragma unroll
  for (int s = 0; s < n / 8; ++s) {
    const int j = 8 * s;
    const std::uint32_t operand[4] = {pack<E>(d[j], d[j + 1]), pack<E>(d[j + 2], d[j + 3]),
                                      pack<E>(d[j + 4], d[j + 5]), pack<E>(d[j + 6], d[j + 7])};
    store_a(tile, 16 * warp, 16 * s, operand);
  }
}
/// An accumulator as a rounded operand and what the rounding left.
template <class E>
__device__ __forceinline__ void split_operand(std::uint32_t (&high)[4][4], std::uint32_t (&low)[4][4],
                                              const float (&d)[32]) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 8 * s + 2 * i;
      high[s][i] = pack<E>(d[j], d[j + 1]);
      const float2 rounded = unpack<E>(high[s][i]);
      low[s][i] = pack<E>(d[j] - rounded.x, d[j + 1] - rounded.y);
    }
  }
}
/// Rows times a factor each.
template <class E, int steps>
__device__ __forceinline__ void scale_rows(std::uint32_t (&operand)[steps][4], const float (&factor)[2]) {
#pragma unroll
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<E>(operand[s][i]);
      operand[s][i] = pack<E>(factor[i % 2] * x.x, factor[i % 2] * x.y);
    }
  }
}
template <int n>
__device__ __forceinline__ void scale_rows(float (&d)[n], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < n; ++j) d[j] *= factor[entry_part(j)];
}
/// Eight elements times a factor.
template <class E>
__device__ __forceinline__ void scale_unit(uint4& x, float factor) {
  std::uint32_t* const parts = &x.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack<E>(parts[i]);
    parts[i] = pack<E>(factor * pair.x, factor * pair.y);
  }
}
/// Products of eight elements each, rounded once: two factors of 16 bits have an exact product in float.
template <class E>
__device__ __forceinline__ uint4 multiply_units(uint4 x, const uint4& y) {
  std::uint32_t* const left = &x.x;
  const std::uint32_t* const right = &y.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if __CUDA_ARCH__ >= 900
    if constexpr (__is_same(E, Bf16)) {
      asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(left[i]) : "r"(left[i]), "r"(right[i]));
    } else {
      asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(left[i]) : "r"(left[i]), "r"(right[i]));
    }
#else
    const float2 a = unpack<E>(left[i]), b = unpack<E>(right[i]);
    left[i] = pack<E>(a.x * b.x, a.y * b.y);
#endif
  }
  return x;
}
/// Adds the products of eight elements each.
template <class E>
__device__ __forceinline__ void add_products(float& sum, const uint4& x, const uint4& y) {
  const std::uint32_t left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 p = unpack<E>(left[i]), q = unpack<E>(right[i]);
    sum = fmaf(p.x, q.x, sum), sum = fmaf(p.y, q.y, sum);
  }
}
/// Row sums over the four lanes that share a row; all four get them.
__device__ __forceinline__ void sum_quads(float (&x)[2]) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    x[part] += __shfl_xor_sync(0xffffffffu, x[part], 1);
    x[part] += __shfl_xor_sync(0xffffffffu, x[part], 2);
  }
}
/// Lane 0 gets the sum over the warp.
__device__ __forceinline__ float sum_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_down_sync(0xffffffffu, x, step);
  return x;
}
/// Sums over this warp's 16 rows of a 64 x 64 accumulator, to 64 shared floats.
__device__ __forceinline__ void sum_columns(const float (&d)[32], float* sums) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int block = 0; block < 8; ++block) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float x = d[4 * block + side] + d[4 * block + 2 + side];
      x += __shfl_xor_sync(0xffffffffu, x, 4);
      x += __shfl_xor_sync(0xffffffffu, x, 8);
      x += __shfl_xor_sync(0xffffffffu, x, 16);
      if (lane < 4) sums[8 * block + 2 * lane + side] = x;
    }
  }
}

}  // namespace deltaport::recurrence::cuda
