// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_input.cuh"

/// The end of a block of gdn2_prepare: A rounded, and what the chunk leaves of the state.
namespace deltaport::recurrence::cuda {

template <class E, int padded_k>
struct Gdn2PrepareEnd : Gdn2Input<E, padded_k> {
  using Input = Gdn2Input<E, padded_k>;
  using L = Gdn2Layout<padded_k>;
  using Own = Octet<padded_k>;
  using Input::a, Input::image, Input::memory, Input::threads;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }

  /// Eight numbers rounded to T, and what that left.
  template <class T>
  __device__ static void split(uint4& high, uint4& low, const float (&x)[8], float factor) {
    std::uint32_t *const top = &high.x, *const rest = &low.x;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float first = factor * x[2 * n], second = factor * x[2 * n + 1];
      top[n] = pack<T>(first, second);
      const float2 rounded = unpack<T>(top[n]);
      rest[n] = pack<T>(first - rounded.x, second - rounded.y);
    }
  }
  /// A thread's part of A = (I + L)^-1: a warp has the rows of one block of 16, a lane a row and eight columns of every
  /// second block.
  struct InversePart {
    static constexpr unsigned groups = threads / 128;
    float x[4 / groups][8];
    std::uint32_t at[4 / groups];  ///< byte offset in a tile
  };
  __device__ void read_inverse(InversePart& part_of, unsigned warp) const {
    constexpr unsigned groups = InversePart::groups;
    const unsigned lane = threadIdx.x % 32, row_block = warp / groups, i = 16 * row_block + lane % 16,
                   side = lane / 16;
#pragma unroll
    for (unsigned n = 0; n < 4 / groups; ++n) {
      const unsigned column_block = n * groups + warp % groups;
      part_of.at[n] = i * 128 + ((2 * column_block + side ^ i % 8) << 4);
      if (column_block <= row_block) {
        read_units(part_of.x[n], row_block, column_block);
      } else {
#pragma unroll
        for (float& x : part_of.x[n]) x = 0.0f;
      }
    }
  }
  /// Eight numbers of a row of a block of A, which lies as invert_from_blocks leaves it.
  __device__ void read_units(float (&x)[8], unsigned row_block, unsigned column_block) const {
    const unsigned lane = threadIdx.x % 32;
    const float* const from = part<float>(L::triangle) + (16 * column_block + lane % 16) * triangle_pitch +
                              16 * row_block + 8 * (lane / 16);
    const float4 left = *reinterpret_cast<const float4*>(from),
                 right = *reinterpret_cast<const float4*>(from + 4);
    x[0] = left.x, x[1] = left.y, x[2] = left.z, x[3] = left.w;
    x[4] = right.x, x[5] = right.y, x[6] = right.z, x[7] = right.w;
  }
  /// A rounded to E, and what that left.
  __device__ static void put_inverse(char* high_to, char* low_to, const InversePart& inverse) {
#pragma unroll
    for (unsigned n = 0; n < 4 / InversePart::groups; ++n) {
      uint4 high, low;
      split<E>(high, low, inverse.x[n], 1.0f);
      *reinterpret_cast<uint4*>(high_to + inverse.at[n]) = high;
      *reinterpret_cast<uint4*>(low_to + inverse.at[n]) = low;
    }
  }
  /// 16 rows of A's diagonal blocks of 32, and what is above them, to the tiles of A.
  __device__ void put_joined(unsigned row_block) const {
    const unsigned lane = threadIdx.x % 32, i = 16 * row_block + lane % 16, side = lane / 16,
                   first = row_block / 2 * 2;
    const float factor = part<float>(L::key_back)[i];
    const auto put = [&](unsigned column_block, uint4 high, uint4 low) {
      const unsigned at = i * 128 + ((2 * column_block + side ^ i % 8) << 4);
      *part<uint4>(L::high + at) = high, *part<uint4>(L::low + at) = low;
    };
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      uint4 high = {}, low = {};
      if (first + n <= row_block) {
        float x[8];
        read_units(x, row_block, first + n);
        split<Half>(high, low, x, factor);
      }
      put(first + n, high, low);
      if (row_block < 2) put(2 + n, {}, {});
    }
  }
  /// The rest.
  __device__ void put_lower_left(unsigned warp) const {
    float second[4], third[4];
    make_lower_left(second, third, part<float>(L::triangle), warp);
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) {
      const unsigned i = 32 + 8 * n + lane / 4, at = i * 128 + ((warp ^ i % 8) << 4) + 4 * (lane % 4);
      const float factor = -part<float>(L::key_back)[i];
      const float* const pair = (n < 2 ? second : third) + n % 2 * 2;
      const float left = factor * pair[0], right = factor * pair[1];
      const std::uint32_t high = pack<Half>(left, right);
      const float2 rounded = unpack<Half>(high);
      *part<std::uint32_t>(L::high + at) = high;
      *part<std::uint32_t>(L::low + at) = pack<Half>(left - rounded.x, right - rounded.y);
    }
    if (a.inverse != nullptr) store_lower_left(part<float>(L::triangle), warp, second, third);  // read below
  }
  /// Halves of the lanes take halves of 2 `count` sums, until a lane has one, that of `row`.
  template <unsigned count, unsigned step>
  __device__ static void share_sums(float (&sums)[2 * octet_rows], unsigned& row) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (unsigned n = 0; n < count; ++n) {
      const float other = __shfl_xor_sync(0xffffffffu, upper ? sums[n] : sums[n + count], step);
      sums[n] = (upper ? sums[n + count] : sums[n]) + other;
    }
    row += upper ? count : 0;
    if constexpr (count > 1) share_sums<count / 2, step / 2>(sums, row);
  }

  /// What the chunk leaves of the state, from X and K~ as the scan will read them. Their rows' norms multiply: a row of X
  /// carries the decay behind it, the same row of K~ that before it.
  __device__ void note_forgetting(int warp) const {
    const Own own = Own::own(warp, threadIdx.x % 32);
    // What this thread has written to device memory comes back while the others finish X.
    const char* const erased = static_cast<const char*>(a.erase) + image * L::tile;
    uint2 k[octet_rows];
#pragma unroll
    for (int i = 0; i < octet_rows; ++i) k[i] = *reinterpret_cast<const uint2*>(erased + own.at(i));
    float gamma = 0.0f;
    if (own.octet == 0) {
      const float4 all = *reinterpret_cast<const float4*>(a.gamma + image * padded_k + own.channel);
      gamma = fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w));
    }
    __syncthreads();
    float sums[2 * octet_rows];  // of X, then of K~
    const auto square = [](float4 x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; };
#pragma unroll
    for (int i = 0; i < octet_rows; ++i) {
      sums[i] = square(unpack<E>(*part<uint2>(L::joint + own.at(i))));
      sums[octet_rows + i] = square(unpack<E>(k[i]));
    }
    unsigned row = 0;
    share_sums<octet_rows, Own::threads / 2>(sums, row);
    if (Own::threads > 16) sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], 1);
    float* const norms = part<float>(L::diagonal);  // 64 of X, 64 of K~
    norms[row / octet_rows * 64 + octet_rows * own.octet + row % octet_rows] = sums[0];
    __syncthreads();
    if (warp > 0) return;
    const int lane = threadIdx.x % 32;
    constexpr float tiny = 0x1p-120f;  // squares may have underflowed
    const auto root = [](float x) { return x * rsqrtf(x); };
    float sum = 0.0f;
#pragma unroll
    for (int i = lane; i < 64; i += 32) sum += root(norms[i] + tiny) * root(norms[64 + i] + tiny);
    sum = sum_warp(sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) gamma = fmaxf(gamma, __shfl_xor_sync(0xffffffffu, gamma, step));
    constexpr float roundings = 1.02f;  // of the state to an operand, and of these sums
    if (lane == 0) a.forgetting[image] = log2f(roundings * (sum + gamma));
  }
};

}  // namespace deltaport::recurrence::cuda
