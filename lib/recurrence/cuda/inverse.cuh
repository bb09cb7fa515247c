// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/tile.cuh"

/// Inverse of a 64 x 64 unit lower triangular matrix in shared memory, by 128 threads. Substitution in float32
/// inside the diagonal blocks of 16, then products of blocks in tf32. Series in powers of the matrix would be
/// shorter, but their terms grow like binomials when keys are alike and cancel afterwards.
namespace deltaport::recurrence::cuda {

constexpr int triangle_pitch = 68;  // floats; rows four banks apart

/// d (16 x 8) += a (16 x 16) b (16 x 8), both in shared memory at these places.
__device__ __forceinline__ void add_block_product(float (&d)[4], const float* a, const float* b) {
  const int lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const float* left = a + group * triangle_pitch + 8 * s + quad;
    const std::uint32_t operand[4] = {to_tf32(left[0]), to_tf32(left[8 * triangle_pitch]), to_tf32(left[4]),
                                      to_tf32(left[8 * triangle_pitch + 4])};
    const float* right = b + (8 * s + quad) * triangle_pitch + group;
    multiply_add_tf32(d, operand, to_tf32(right[0]), to_tf32(right[4 * triangle_pitch]));
  }
}
__device__ __forceinline__ void store_block(float* block, const float (&d)[4], float sign) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    *reinterpret_cast<float2*>(block + (lane / 4 + 8 * part) * triangle_pitch + 2 * (lane % 4)) =
        make_float2(sign * d[2 * part], sign * d[2 * part + 1]);
  }
}

/// Diagonal block in place. Both its halves of 8 x 8 are inverted at once, lane c < 16 solving for column c of its own;
/// then all lanes make what lies below the first, -A11 L10 A00.
__device__ __forceinline__ void invert_diagonal_block(float* block) {
  const unsigned lane = threadIdx.x % 32, half = lane / 8 % 2, column = lane % 8;
  float* const own = block + 8 * half * (triangle_pitch + 1);
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float even = column == i ? 1.0f : 0.0f, odd = 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 row = *reinterpret_cast<const float4*>(own + i * triangle_pitch + j);
      even -= row.x * x[j];
      if (j + 1 < i) odd -= row.y * x[j + 1];
      if (j + 2 < i) even -= row.z * x[j + 2];
      if (j + 3 < i) odd -= row.w * x[j + 3];
    }
    x[i] = even + odd;
  }
  // Row lane / 4 of L10, then of A11, times two columns of what is to its right.
  float* const below = block + 8 * triangle_pitch;
  const unsigned row = lane / 4, pair = 2 * (lane % 4);
  const auto row_times = [&](const float* left, const float* right, int right_pitch) {
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const float4 l = *reinterpret_cast<const float4*>(left + j);
      const float ls[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 r = *reinterpret_cast<const float2*>(right + (j + n) * right_pitch);
        sum.x += ls[n] * r.x, sum.y += ls[n] * r.y;
      }
    }
    return sum;
  };
  __syncwarp();  // L is read
  if (lane < 16) {
#pragma unroll
    for (int i = 0; i < 8; ++i) own[i * triangle_pitch + column] = x[i];
  }
  __syncwarp();
  const float2 product = row_times(below + row * triangle_pitch, block + pair, triangle_pitch);
  __syncwarp();
  float* const at = below + row * triangle_pitch + pair;
  *reinterpret_cast<float2*>(at) = product;
  __syncwarp();
  const float2 result = row_times(below + row * triangle_pitch + 8, below + pair, triangle_pitch);
  __syncwarp();
  *reinterpret_cast<float2*>(at) = make_float2(-result.x, -result.y);
  if (lane < 16) {  // the place beside it has held no zeroes before
    *reinterpret_cast<float4*>(block + lane / 2 * triangle_pitch + 8 + 4 * (lane % 2)) =
        make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

/// Block (row, column) of 16 x 16.
__device__ __forceinline__ float* triangle_block(float* triangle, int row, int column) {
  return triangle + 16 * row * triangle_pitch + 16 * column;
}
// The inverse by doubling: `triangle` holds L, its diagonal blocks inverted, for all threads to see. Afterwards diagonal
// block r holds that block of A = (I + L)^-1, and A's block (r, c), r > c, lies at block (c, r), not transposed. Every warp
// owns columns, so that a level needs no barrier inside.

/// From 16 to 32.
__device__ __forceinline__ void join_blocks(float* triangle, int warp) {
  const auto block = [&](int row, int column) { return triangle_block(triangle, row, column); };
  // A10 = -A11 L10 A00 and A32 likewise; this warp's 8 columns
  const int first = warp / 2 * 2, column = 8 * (warp % 2);
  float* const result = block(first, first + 1) + column;
  float d[4] = {}, product[4] = {};
  add_block_product(d, block(first + 1, first), block(first, first) + column);
  store_block(result, d, 1.0f);
  __syncwarp();
  add_block_product(product, block(first + 1, first + 1), result);
  __syncwarp();
  store_block(result, product, -1.0f);
}
/// From 32 to 64, once all threads see those: the lower left 32 x 32 times -1, columns 8 warp to 8 warp + 7, rows of block 2
/// in `second`, of block 3 in `third`. The place of the result is used.
__device__ __forceinline__ void make_lower_left(float (&second)[4], float (&third)[4], float* triangle,
                                                int warp) {
  const auto block = [&](int row, int column) { return triangle_block(triangle, row, column); };
  const int c = warp / 2, column = 8 * (warp % 2);
  float upper[4] = {}, lower[4] = {};
  add_block_product(upper, block(2, c), block(c, c) + column);
  add_block_product(lower, block(3, c), block(c, c) + column);
  if (c == 0) {
    add_block_product(upper, block(2, 1), block(0, 1) + column);
    add_block_product(lower, block(3, 1), block(0, 1) + column);
  }
  float *const row2 = block(c, 2) + column, *const row3 = block(c, 3) + column;
  store_block(row2, upper, 1.0f);
  store_block(row3, lower, 1.0f);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) second[i] = third[i] = 0.0f;
  add_block_product(second, block(2, 2), row2);
  add_block_product(third, block(2, 3), row2);
  add_block_product(third, block(3, 3), row3);
}
__device__ __forceinline__ void store_lower_left(float* triangle, int warp, const float (&second)[4],
                                                 const float (&third)[4]) {
  const int c = warp / 2, column = 8 * (warp % 2);
  __syncwarp();
  store_block(triangle_block(triangle, c, 2) + column, second, -1.0f);
  store_block(triangle_block(triangle, c, 3) + column, third, -1.0f);
}
/// All of it. The caller's next __syncthreads makes the result visible.
__device__ __forceinline__ void invert_from_blocks(float* triangle, int warp) {
  join_blocks(triangle, warp);
  __syncthreads();
  float second[4], third[4];
  make_lower_left(second, third, triangle, warp);
  store_lower_left(triangle, warp, second, third);
}
/// The same from L, whose rows 16 w to 16 w + 15 warp w has written itself.
__device__ __forceinline__ void invert_unit_lower(float* triangle, int warp) {
  __syncwarp();
  invert_diagonal_block(triangle + 16 * warp * triangle_pitch + 16 * warp);
  __syncthreads();
  invert_from_blocks(triangle, warp);
}

/// What a thread takes of A = (I + L)^-1 (see invert_unit_lower): units 2 s + thread % 2 of one row.
struct InverseRow {
  float x[4][8];

  /// Even rows first, then odd ones, so that eight threads write to different banks.
  __device__ static unsigned row(unsigned thread) {
    return thread / 16 * 8 + thread / 2 % 4 * 2 + thread / 8 % 2;
  }

  __device__ void read(const float* triangle, unsigned thread) {
    const unsigned i = row(thread), row_block = i / 16;
#pragma unroll
    for (unsigned s = 0; s < 4; ++s) {
      const float* const from =
          s == row_block ? triangle + i * triangle_pitch + 16 * s + 8 * (thread % 2)
                         : triangle + (16 * s + i % 16) * triangle_pitch + 16 * row_block + 8 * (thread % 2);
      const float4 zero = {}, left = s <= row_block ? *reinterpret_cast<const float4*>(from) : zero,
                   right = s <= row_block ? *reinterpret_cast<const float4*>(from + 4) : zero;
      x[s][0] = left.x, x[s][1] = left.y, x[s][2] = left.z, x[s][3] = left.w;
      x[s][4] = right.x, x[s][5] = right.y, x[s][6] = right.z, x[s][7] = right.w;
    }
  }
  /// store(offset, high, low): 16 bytes of the tiles of `factor` A rounded, and of what the rounding left.
  template <class E, class Store>
  __device__ void split(unsigned thread, float factor, Store store) const {
    const unsigned i = row(thread);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t high[4], low[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float first = factor * x[s][2 * n], second = factor * x[s][2 * n + 1];
        high[n] = pack<E>(first, second);
        const float2 rounded = unpack<E>(high[n]);
        low[n] = pack<E>(first - rounded.x, second - rounded.y);
      }
      store(i * 128 + (((thread % 2 ^ i % 8) << 4) ^ (s << 5)),
            make_uint4(high[0], high[1], high[2], high[3]), make_uint4(low[0], low[1], low[2], low[3]));
    }
  }
};

}  // namespace deltaport::recurrence::cuda
