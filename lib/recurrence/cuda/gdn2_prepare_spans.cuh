// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_input.cuh"

/// L and P of gdn2_prepare, span by span.
namespace deltaport::recurrence::cuda {

/// Works on the block's shared memory. L and P are of rows of length 1.
template <int padded_k>
struct Gdn2Spans {
  using L = Gdn2Layout<padded_k>;
  using Own = Octet<padded_k>;
  using Products = OctetProducts<padded_k>;
  static constexpr int steps = padded_k / 16;

  unsigned char* memory;

  template <class T>
  __device__ T* part(int offset) const {
    return reinterpret_cast<T*>(memory + offset);
  }
  __device__ std::uint32_t address(int offset) const { return shared_address(memory + offset); }
  __device__ void put(int tile, std::uint32_t at, uint2 x) const { *part<uint2>(tile + at) = x; }

  /// element_offset in a tile of 64 columns.
  __device__ static unsigned p_offset(unsigned i, unsigned j) {
    return i * 128 + ((j / 8 ^ i % 8) * 16 | j % 8 * 2);
  }
  /// An element of L or P, of rows of length 1.
  __device__ void put_product(bool query, unsigned i, unsigned j, float x) const {
    if (query) {
      *part<Half>(L::p + p_offset(i, j)) = static_cast<Half>(x);
    } else {
      part<float>(L::triangle)[i * triangle_pitch + j] = x;
    }
  }
  __device__ void put_products(bool query, unsigned i, unsigned j, float x, float y) const {
    if (query) {
      *part<std::uint32_t>(L::p + p_offset(i, j)) = pack<Half>(x, y);
    } else {
      *reinterpret_cast<float2*>(part<float>(L::triangle) + i * triangle_pitch + j) = make_float2(x, y);
    }
  }

  /// The spans 4 and 2, in an octet. Operands lie in the octet's rows of the tiles q, b and joint. Then the rows with their
  /// decays in the octet, which all larger spans ask for: b o k and q from its first row, k to its last.
  __device__ void multiply_small(OctetRows& x, const float4 (&d)[octet_rows], unsigned warp) const {
    const Own own = Own::own(warp, lane_again());
    const float4 d12 = d[1] * d[2], d34 = d[3] * d[4], d56 = d[5] * d[6], d67 = d[6] * d[7];
    const float4 d234 = d[2] * d34, d1234 = d12 * d34, d567 = d56 * d[7];
    uint2 s[octet_rows];
#pragma unroll
    for (int i = 1; i < octet_rows; ++i) s[i] = pack<Half>(d[i]);
    const uint2 h12 = pack<Half>(d12), h56 = pack<Half>(d56), h567 = pack<Half>(d567),
                h1234 = pack<Half>(d1234);
    const uint2 all = pack<Half>(d1234 * d567);
    const uint2 upper[octet_rows] = {
        {}, s[1], h12, pack<Half>(d12 * d[3]), h1234, pack<Half>(d1234 * d[5]), pack<Half>(d1234 * d56), all};
    const uint2 lower[octet_rows] = {all,
                                     pack<Half>(d234 * d567),
                                     pack<Half>(d34 * d567),
                                     pack<Half>(d[4] * d567),
                                     h567,
                                     pack<Half>(d67),
                                     s[7],
                                     {}};
    const uint2 upper4[4] = {{}, s[5], h56, h567},
                lower4[4] = {h1234, pack<Half>(d234), pack<Half>(d34), s[4]};
#pragma unroll
    for (int i = 0; i < keys_in_tile; ++i) x.k[i] = *part<uint2>(L::k + own.at(i));
    __syncwarp();  // the rows are read
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int wide = 4 + n, narrow = n / 2 * 4 + 2 + n % 2, first = n / 2 * 4 + n % 2;
      put(L::q, own.at(n), n == 0 ? x.b[wide] : multiply_halves(x.b[wide], upper4[n]));
      put(L::q, own.at(4 + n), n == 0 ? x.q[wide] : multiply_halves(x.q[wide], upper4[n]));
      put(L::b, own.at(n), n % 2 == 0 ? x.b[narrow] : multiply_halves(x.b[narrow], s[narrow]));
      put(L::b, own.at(4 + n), n % 2 == 0 ? x.q[narrow] : multiply_halves(x.q[narrow], s[narrow]));
      put(L::joint, own.at(n), multiply_halves(x.k[n], lower4[n]));
      put(L::joint, own.at(4 + n), multiply_halves(x.k[first], n == 0 ? h12 : n == 2 ? h56 : s[first + 1]));
    }
#pragma unroll
    for (int i = 0; i < octet_rows; ++i) {
      if (i > 0) x.b[i] = multiply_halves(x.b[i], upper[i]), x.q[i] = multiply_halves(x.q[i], upper[i]);
      if (i < octet_rows - 1) x.k[i] = multiply_halves(x.k[i], lower[i]);
    }
    __syncwarp();
    const Products products(memory);
    const unsigned lane = lane_again(), i = lane / 4, c = lane % 4;
    const bool query = i >= 4;
#pragma unroll
    for (unsigned n = 0; n < Own::per_warp; ++n) {
      const unsigned octet = warp * Own::per_warp + n, first = octet_rows * octet;
      float y[4];
      products.multiply(y, products.pair(L::q, L::b, octet), products.single(L::joint, octet));
      if (c < 2) {
        put_products(query, first + 4 + i % 4, first + 2 * c, y[0], y[1]);
      } else if (i % 4 / 2 == c - 2) {
        put_products(query, first + 4 * (c - 2) + 2 + i % 2, first + 4 * (c - 2), y[2], y[3]);
      }
    }
    __syncwarp();
  }

  /// The operands of a larger span to tiles, `to` rows of the octet's own away; `rest`: from the octet to the anchor.
  template <bool anchor>
  __device__ void stage_upper(const Own& own, const OctetRows& x, uint2 rest, int b_tile, int q_tile) const {
#pragma unroll
    for (int i = 0; i < octet_rows; ++i) {
      uint2 b = x.b[i], q = x.q[i];
      if (!anchor) b = multiply_halves(b, rest), q = multiply_halves(q, rest);
      put(b_tile, own.at(i), b);
      put(q_tile, own.at(i), q);
    }
  }
  __device__ void stage_upper(const Own& own, const OctetRows& x, bool anchor, uint2 rest, int b_tile,
                              int q_tile) const {
    if (anchor) {
      stage_upper<true>(own, x, rest, b_tile, q_tile);
    } else {
      stage_upper<false>(own, x, rest, b_tile, q_tile);
    }
  }
  __device__ void stage_lower(const Own& own, const OctetRows& x, uint2 rest, int tile) const {
#pragma unroll
    for (int i = 0; i < octet_rows; ++i) {
      put(tile, own.at(i), multiply_halves(x.k[i], rest));
    }
  }
  /// Span 8: two octets that follow each other, of one warp or two.
  __device__ void multiply_pairs(const OctetRows& x, uint2 rest, unsigned warp) const {
    const Own own = Own::own(warp, lane_again());
    if (own.octet % 2 == 1) {
      stage_upper<true>(own, x, rest, L::b, L::q);
    } else {
      stage_lower(own, x, rest, L::q);
    }
    if (Own::per_warp > 1) {
      __syncwarp();
    } else {
      pair_barrier(warp / 2);
      if (warp % 2 == 1) return;
    }
    const Products products(memory);
    const unsigned lower = Own::per_warp > 1 ? 2 * warp : warp;
    float y[4];
    products.multiply(y, products.pair(L::b, L::q, lower + 1), products.single(L::q, lower));
    const unsigned lane = lane_again(), i = octet_rows * (lower + 1) + lane / 4,
                   j = octet_rows * lower + 2 * (lane % 4);
    put_products(false, i, j, y[0], y[1]);
    put_products(true, i, j, y[2], y[3]);
  }
  /// Of 64 threads, without the others.
  __device__ static void pair_barrier(unsigned pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory");
  }
  /// The operands of the spans 32 and 16, 32 upper rows each: b o k above q; and 32 lower rows.
  __device__ void stage_joins(const Own& own, const OctetRows& x, uint2 to32, uint2 to16) const {
    constexpr int octet_bytes = octet_rows * 128;
    const int octet = own.octet;
    if (octet >= 4) {
      stage_upper(own, x, octet == 4, to32, L::q - 4 * octet_bytes, L::q);
    } else {
      stage_lower(own, x, to32, L::joint);
    }
    const int move = (octet / 4 * 2 + octet % 2 - octet) * octet_bytes;
    if (octet / 2 % 2 == 1) {
      stage_upper(own, x, octet % 2 == 0, to16, L::b + move, L::b + move + 4 * octet_bytes);
    } else {
      stage_lower(own, x, to16, L::joint + move + 4 * octet_bytes);
    }
  }
  /// K^ in the place of k; `after`: from the octet to the end of the chunk.
  __device__ void restore(const Own& own, const OctetRows& x, uint2 after) const {
    stage_lower(own, x, after, L::k);
  }
  /// By the last four warps.
  __device__ void multiply_joins(unsigned warp) const {
    constexpr int half_tile = 32 * 128;
    float wide[16], narrow[16];
    hold(wide), hold(narrow);
    products_begin();
    multiply_join<steps>(wide, address(L::q), address(L::joint));
    multiply_join<steps>(narrow, address(L::b), address(L::joint + half_tile));
    products_commit();
    products_wait<0>();
    hold(wide), hold(narrow);
    if (warp / 2 % 2 == 1) {
      put_joins<true>(wide, narrow, warp % 2);
    } else {
      put_joins<false>(wide, narrow, warp % 2);
    }
  }
  /// `part`: which 16 rows of the 32.
  template <bool query>
  __device__ void put_joins(const float (&wide)[16], const float (&narrow)[16], unsigned part) const {
    const unsigned lane = lane_again(), i = lane / 4, j = 2 * (lane % 4);
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) {
      const unsigned row = 32 + 16 * part + i, column = 8 * n + j;
      put_products(query, row, column, wide[4 * n], wide[4 * n + 1]);
      put_products(query, row + 8, column, wide[4 * n + 2], wide[4 * n + 3]);
    }
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      const unsigned row = 16 + 32 * part + i, column = 32 * part + 8 * n + j;
      const auto either = [&](unsigned k) { return part == 0 ? narrow[4 * n + k] : narrow[8 + 4 * n + k]; };
      put_products(query, row, column, either(0), either(1));
      put_products(query, row + 8, column, either(2), either(3));
    }
  }
};

}  // namespace deltaport::recurrence::cuda
