// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_levels.cuh"
#include "recurrence/cuda/wgmma.cuh"

/// The products of gdn2_levels.cuh as gdn2_prepare makes them: operands are multiplied with their factors by the thread
/// that owns them and go to tiles of their own, so that what multiplies them needs no factors.
///
/// A thread owns an octet, 8 rows, and four neighbouring channels. Spans 4, 2 and 1 stay in the octet and so in the warp;
/// span 8 joins two octets, 16 and 32 go through tiles of the block.
namespace deltaport::recurrence::cuda {

constexpr int octet_rows = 8, octets = chunk_rows / octet_rows;
/// Rows of k of length 1 that wait in their tile: registers are scarce.
constexpr int keys_in_tile = 3;

template <class E>
__device__ __forceinline__ float4 unpack(uint2 x) {
  const float2 first = unpack<E>(x.x), second = unpack<E>(x.y);
  return {first.x, first.y, second.x, second.y};
}
template <class E>
__device__ __forceinline__ uint2 pack(float4 x) {
  return {pack<E>(x.x, x.y), pack<E>(x.z, x.w)};
}
__device__ __forceinline__ uint2 multiply_halves(uint2 x, uint2 y) {
  return {multiply_halves(x.x, y.x), multiply_halves(x.y, y.y)};
}

/// The lane, asked for again: what is made of it need not be kept in registers from one use to the next.
__device__ __forceinline__ unsigned lane_again() {
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// A thread's octet and channels.
template <int padded_k>
struct Octet {
  static constexpr unsigned threads = padded_k / 4, per_warp = 32 / threads;

  unsigned octet, channel;
  std::uint32_t first;  ///< byte offset of row 0 in a tile

  __device__ static Octet own(unsigned warp, unsigned lane) {
    Octet o;
    o.octet = per_warp == 1 ? warp : warp * per_warp + lane / threads;
    o.channel = lane % threads * 4;
    o.first = o.octet * (octet_rows * 128) + o.channel / 64 * panel_bytes + o.channel % 64 * 2;
    return o;
  }
  /// Byte offset of row i in a tile of 64 rows.
  __device__ std::uint32_t at(int i) const { return (first ^ (i * 16u)) + i * 128u; }
};

/// What an octet's rows and channels of length 1 are in binary16.
struct OctetRows {
  uint2 k[octet_rows], q[octet_rows], b[octet_rows];  ///< b: b o k
};

/// Decays of other octets on the way from an anchor to this octet, of four channels.
struct OctetFactors {
  float4 before;          ///< 2^N, N = G of the octet's first row
  float4 after;           ///< 2^(G_last - G of the octet's last row)
  uint2 to8, to16, to32;  ///< in binary16, from the octet's end or its first row to the anchor of a span
};
/// first[o], rest[o], total[o]: decay of octet o's first row, product of its other rows, product of both. Octet `own`;
/// numbers lie `stride` float4s apart.
template <int stride>
__device__ __forceinline__ OctetFactors octet_factors(const float4* first, const float4* rest,
                                                      const float4* totals, unsigned own) {
  const float4 one = {1.0f, 1.0f, 1.0f, 1.0f};
  const auto total = [&](unsigned o) { return totals[o * stride]; };
  const bool upper8 = own % 2 == 1, upper16 = own / 2 % 2 == 1, upper32 = own / 4 == 1;
  const unsigned pair = (own / 2 ^ 1) * 2, quad = (own / 4 ^ 1) * 4;
  const float4 begin = first[own * stride], first_beside = first[(own ^ 1) * stride],
               rest_beside = rest[(own ^ 1) * stride], beside = first_beside * rest_beside;
  const float4 first_pair = first[pair * stride], rest_pair = rest[pair * stride],
               last_pair = total(pair + 1), both = first_pair * rest_pair * last_pair;
  const float4 first_quad = first[quad * stride];
  const float4 all = first_quad * rest[quad * stride] * total(quad + 1) * (total(quad + 2) * total(quad + 3));
  OctetFactors f;
  float4 before = upper8 ? beside : one, after = upper8 ? one : beside;
  f.to8 = pack<Half>(upper8 ? one : first_beside);
  // From the first row of an upper half to the first row of the octet.
  float4 within = upper8 ? rest_beside * begin : one;
  f.to16 = pack<Half>(upper16 ? within : after * first_pair);
  if (upper16) {
    within = rest_pair * last_pair * (upper8 ? beside * begin : begin);
    before = before * both;
  } else {
    after = after * both;
  }
  f.to32 = pack<Half>(upper32 ? within : after * first_quad);
  f.before = (upper32 ? before * all : before) * begin;
  f.after = upper32 ? after : after * all;
  return f;
}

/// What multiplies an octet: addresses for its warp.
template <int padded_k>
struct OctetProducts {
  static constexpr int steps = padded_k / 16;
  std::uint32_t memory;
  std::uint32_t row, beside, along;

  __device__ explicit OctetProducts(const unsigned char* base) : memory(shared_address(base)) {
    const std::uint32_t lane = lane_again();
    row = lane / 8 % 2;
    beside = lane % 8 * 128 + ((lane / 16 ^ lane % 8) << 4);
    along = lane % 8 * 128 + ((lane / 8 ^ lane % 8) << 4);
  }
  /// A operand of step s: rows 0 to 7 are an octet's in one tile, rows 8 to 15 in another.
  __device__ std::uint32_t pair(int first, int second, unsigned octet) const {
    return memory + (row == 0 ? first : second) + octet * (octet_rows * 128) + beside;
  }
  __device__ static std::uint32_t pair_step(std::uint32_t from, int s) {
    return (from ^ (s % 4 * 32)) + s / 4 * panel_bytes;
  }
  /// Eight rows of an octet in the steps 2 s and 2 s + 1: registers 2 t and 2 t + 1 are those of step 2 s + t.
  __device__ std::uint32_t single(int tile, unsigned octet) const {
    return memory + tile + octet * (octet_rows * 128) + along;
  }
  __device__ static std::uint32_t single_steps(std::uint32_t from, int s) {
    return (from ^ (s % 2 * 64)) + s / 2 * panel_bytes;
  }
  /// d = A B^T, in two sums that do not wait for each other.
  __device__ void multiply(float (&d)[4], std::uint32_t left, std::uint32_t right) const {
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int s = 0; s < steps; s += 2) {
      std::uint32_t a[2][4], b[4];
      load_matrices(a[0], pair_step(left, s));
      load_matrices(a[1], pair_step(left, s + 1));
      load_matrices(b, single_steps(right, s / 2));
      multiply_add<Half>(even, a[0], b[0], b[1]);
      multiply_add<Half>(odd, a[1], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = even[i] + odd[i];
  }
};

/// d (64 x 32) = A B^T of binary16 over `steps` steps of 16 channels: A a tile of 64 rows, B 32 rows of one. By four warps;
/// asynchronous as multiply_tiles.
template <int steps>
__device__ __forceinline__ void multiply_join(float (&d)[16], std::uint32_t a, std::uint32_t b) {
#if defined(DELTAPORT_WGMMA)
  const std::uint64_t first_a = descriptor(a, 16, 1024), first_b = descriptor(b, 16, 1024);
#endif
#pragma unroll
  for (int s = 0; s < steps; ++s) {
#if defined(DELTAPORT_WGMMA)
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %18, 0;"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,"
        "%15}, %16, %17, p, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(first_a + (s / 4 * panel_bytes + s % 4 * 32) / 16),
          "l"(first_b + (s / 4 * panel_bytes + s % 4 * 32) / 16), "r"(s > 0 ? 1 : 0));
#else
    const int warp = threadIdx.x / 32 % 4;
    std::uint32_t left[4], right[4];
    load_a(left, a, 16 * warp, 16 * s);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      load_b(right, b, 16 * n, 16 * s);
      float(&first)[4] = reinterpret_cast<float(&)[4]>(d[8 * n]);
      float(&second)[4] = reinterpret_cast<float(&)[4]>(d[8 * n + 4]);
      if (s == 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) d[8 * n + i] = 0.0f;
      }
      multiply_add<Half>(first, left, right[0], right[1]);
      multiply_add<Half>(second, left, right[2], right[3]);
    }
#endif
  }
}

}  // namespace deltaport::recurrence::cuda
