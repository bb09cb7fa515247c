// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_gates.cuh"
#include "recurrence/cuda/tile.cuh"

/// Products over channels with the decay between two rows of a chunk,
///   sum_d x_id k_jd 2^(G_id - G_jd), i > j, for x = b o k and x = q,
/// by halving: on the level of span s (32, 16, ..., 1) row i is `upper` if i has bit s set, else `lower`, and upper rows
/// meet the lower rows of the same 2 s rows. The row where the upper half begins is the anchor N:
///   (x_id 2^(G_id - N_d)) (k_jd 2^(N_d - G_jd))
/// Both factors are products of decays, so they are at most 1, underflow only where the result does, and no sums of
/// logarithms cancel; and row i sees nothing later than itself. Every pair i > j belongs to exactly one level, and on a
/// level every row and channel has one factor.
///
/// Operands are binary16: rows of q and k scaled to length 1, so that their range is safe, and factors; multiplied as
/// fragments. Three roundings of 2^-12 are what one of tf32 is, at half the bytes.
///
/// A thread owns a strip of 16 rows and two neighbouring channels, a warp a strip and 64 channels. Spans 32 and 16 join
/// strips and go through tiles of the block; smaller spans stay in the warp.
namespace deltaport::recurrence::cuda {

constexpr int strip_rows = 16;

/// What a row is multiplied with: reciprocal norms, and what takes a row of length 1 back to the row that counts.
struct RowScale {
  float key, query, key_back, query_back;
};

/// A thread's strip and channels. The tiles at byte offsets k, q, b hold what the caller gave, then (see
/// normalise) k, q and b o k of length 1 in binary16.
struct Strip {
  unsigned char* memory;
  int k, q, b;
  const RowScale* rows;  ///< of the chunk
  int strip, channel;
  std::uint32_t first = unit_offset(strip_rows * strip, channel / 8 * 8) + 2 * (channel % 8);

  /// Byte offset in a tile of 64 rows: unit_offset, told the compiler in few instructions.
  __device__ std::uint32_t at(int i) const { return (first ^ (i % 8 * 16u)) + i * 128u; }
  __device__ const RowScale& scale(int i) const { return rows[strip_rows * strip + i]; }
  __device__ std::uint32_t raw(int tile, int i) const {
    return *reinterpret_cast<const std::uint32_t*>(memory + tile + at(i));
  }
  template <class E>
  __device__ void store(int tile, int i, float2 x) const {
    *reinterpret_cast<std::uint32_t*>(memory + tile + at(i)) = pack<E>(x.x, x.y);
  }
};

__device__ __forceinline__ std::uint32_t multiply_halves(std::uint32_t x, std::uint32_t y) {
  const __half2 product =
      __hmul2(*reinterpret_cast<const __half2*>(&x), *reinterpret_cast<const __half2*>(&y));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}
__device__ __forceinline__ void multiply_halves(std::uint32_t (&x)[4], const std::uint32_t (&y)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = multiply_halves(x[i], y[i]);
}

/// Rows that a thread reads before it writes any: the compiler cannot know that places differ, and would wait for every
/// row's loads one by one.
constexpr int batch_rows = 8;

/// From row `begin` of the strip: k, q and b o k of length 1 to their tiles; b is read from the tile `raw_b`.
template <class E, bool plain>
__device__ __forceinline__ void normalise_batch(const Strip& own, int raw_b, Beta beta, int begin) {
  std::uint32_t k[batch_rows], q[batch_rows], b[batch_rows];
  float2 norms[batch_rows];  // key, query
#pragma unroll
  for (int n = 0; n < batch_rows; ++n) {
    const int i = begin + n;
    k[n] = own.raw(own.k, i), q[n] = own.raw(own.q, i), b[n] = own.raw(raw_b, i);
    norms[n] = *reinterpret_cast<const float2*>(&own.scale(i));
  }
#pragma unroll
  for (int n = 0; n < batch_rows; ++n) {
    const int i = begin + n;
    const float2 key = unpack<E>(k[n]) * norms[n].x, gate = unpack<E>(b[n]);
    own.store<Half>(own.k, i, key);
    own.store<Half>(own.q, i, unpack<E>(q[n]) * norms[n].y);
    own.store<Half>(own.b, i, (plain ? gate : erase_gate(beta, gate)) * key);
  }
}
template <class E>
__device__ __forceinline__ void normalise(const Strip& own, int raw_b, Beta beta, int begin) {
  if (beta == Beta::plain) {
    normalise_batch<E, true>(own, raw_b, beta, begin);
  } else {
    normalise_batch<E, false>(own, raw_b, beta, begin);
  }
}

// ---- spans in a strip ------------------------------------------------------------------------------------

/// The factors of a warp and level: 16 rows of 64 channels.
constexpr int level_bytes = strip_rows * 128;

/// The upper and lower rows of a level, counted without their bit `span`.
__host__ __device__ constexpr unsigned upper_row(unsigned n, unsigned span) {
  return n / span * 2 * span + span + n % span;
}
__host__ __device__ constexpr unsigned lower_row(unsigned n, unsigned span) {
  return n / span * 2 * span + n % span;
}

/// The factors of a level to the warp's tile at byte offset `tile`; decay[i] is that of row i.
template <int span>
__device__ __forceinline__ void stage_level(const Strip& own, const float2 (&decay)[strip_rows], int tile) {
  const std::uint32_t lane = threadIdx.x % 32;
  const auto store = [&](int row, float2 x) {
    // unit_offset of the lane's two channels
    *reinterpret_cast<std::uint32_t*>(own.memory + tile + ((4 * lane) ^ (row % 8 * 16u)) + row * 128u) =
        pack<Half>(x.x, x.y);
  };
  float2 factor = {1.0f, 1.0f};
#pragma unroll
  for (int n = 7; n >= 0; --n) {
    const float2 next = decay[lower_row(n, span) + 1];
    factor = n % span == span - 1 ? next : next * factor;
    store(lower_row(n, span), factor);
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    factor = n % span == 0   ? make_float2(1.0f, 1.0f)
             : n % span == 1 ? decay[upper_row(n, span)]
                             : factor * decay[upper_row(n, span)];
    store(upper_row(n, span), factor);
  }
}
/// d: rows 0 to 7 are the products of b o k, rows 8 to 15 those of q, over the warp's 64 channels.
template <int span>
__device__ __forceinline__ void multiply_level(float (&d)[4], const Strip& own, int tile) {
  const unsigned lane = threadIdx.x % 32, n = lane % 8, part = lane / 8;
  const unsigned upper = upper_row(n, span), lower = lower_row(n, span), first = own.channel & ~63;
  const std::uint32_t memory = shared_address(own.memory);
  // Steps of 16 channels flip bits of the swizzled address.
  const std::uint32_t left = memory + (part % 2 == 0 ? own.b : own.q) +
                             unit_offset(strip_rows * own.strip + upper, first + 8 * (part / 2));
  const std::uint32_t right = memory + own.k + unit_offset(strip_rows * own.strip + lower, first + 8 * part);
  const std::uint32_t factors = memory + tile + unit_offset(part < 2 ? upper : lower, 8 * (part % 2));
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = 0.0f;
  std::uint32_t b[4];
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    std::uint32_t a[4], f[4];
    load_matrices(a, left ^ (32 * s));
    load_matrices(f, factors ^ (32 * s));
    if (s % 2 == 0) load_matrices(b, right ^ (32 * s));
    multiply_halves(a, {f[0], f[0], f[1], f[1]});
    multiply_add<Half>(d, a, multiply_halves(b[2 * (s % 2)], f[2]),
                       multiply_halves(b[2 * (s % 2) + 1], f[3]));
  }
}
/// The levels `span` and span / 2.
template <int span>
__device__ __forceinline__ void multiply_levels(float (&first)[4], float (&second)[4], const Strip& own,
                                                const float2 (&decay)[strip_rows], int tiles) {
  stage_level<span>(own, decay, tiles);
  stage_level<span / 2>(own, decay, tiles + level_bytes);
  __syncwarp();
  multiply_level<span>(first, own, tiles);
  multiply_level<span / 2>(second, own, tiles + level_bytes);
  __syncwarp();
}

// ---- spans that join strips ------------------------------------------------------------------------------

/// Products with the decays of other strips: 2^(G - G) between the first rows of strips and the ends of the chunk.
struct StripFactors {
  float2 next;    ///< decay of the next strip's first row; 1 behind the last strip
  float2 before;  ///< 2^N, N = G of the strip's first row
  float2 after;   ///< 2^(G_last - N of the next strip)
  float2 middle;  ///< from this strip's anchor to that of span 32
  float2 gamma;   ///< 2^G_last
};
/// first[s] and rest[s]: decay of strip s' first row, product of its other rows.
__device__ __forceinline__ StripFactors strip_factors(const float2 (&first)[4], const float2 (&rest)[4],
                                                      int strip) {
  const float2 one = {1.0f, 1.0f};
  const float2 n1 = rest[0] * first[1], n2 = rest[1] * first[2], n3 = rest[2] * first[3];  // anchor to anchor
  StripFactors f;
  f.next = strip == 0 ? first[1] : strip == 1 ? first[2] : strip == 2 ? first[3] : one;
  const float2 b1 = first[0] * n1, b2 = b1 * n2, b3 = b2 * n3;
  f.before = strip == 0 ? first[0] : strip == 1 ? b1 : strip == 2 ? b2 : b3;
  const float2 a1 = n3 * rest[3], a0 = n2 * a1;
  f.after = strip == 0 ? a0 : strip == 1 ? a1 : strip == 2 ? rest[3] : one;
  f.middle = strip == 0 ? n2 : strip == 3 ? n3 : one;
  f.gamma = b3 * rest[3];
  return f;
}

/// The factors of the spans 32 (far) and 16 (near) to tiles of 64 rows x K.
__device__ __forceinline__ void stage_joins(const Strip& own, const float2 (&decay)[strip_rows],
                                            const StripFactors& f, int far, int near) {
  const bool upper_far = own.strip >= 2, upper_near = own.strip % 2 == 1;
  if (upper_far || upper_near) {
    float2 factor = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) {
      if (i > 0) factor = factor * decay[i];
      if (upper_far) own.store<Half>(far, i, factor * f.middle);
      if (upper_near) own.store<Half>(near, i, factor);
    }
  }
  if (!upper_far || !upper_near) {
    float2 factor = f.next;
#pragma unroll
    for (int i = strip_rows - 1; i >= 0; --i) {
      if (i < strip_rows - 1) factor = factor * decay[i + 1];
      if (!upper_far) own.store<Half>(far, i, factor * f.middle);
      if (!upper_near) own.store<Half>(near, i, factor);
    }
  }
}
/// Q~, K~ and K^ (of rows of length 1, in binary16) in the place of q, b o k and k.
template <class E, bool normalised>
__device__ __forceinline__ void decay_rows(const Strip& own, const float2 (&decay)[strip_rows],
                                           const StripFactors& f, float scale) {
  float2 erase = f.before, query = f.before * scale;
#pragma unroll
  for (int begin = 0; begin < strip_rows; begin += batch_rows) {
    std::uint32_t b[batch_rows], q[batch_rows];
    float2 back[batch_rows];
#pragma unroll
    for (int n = 0; n < batch_rows; ++n) {
      const int i = begin + n;
      b[n] = own.raw(own.b, i), q[n] = own.raw(own.q, i);
      back[n] =
          normalised ? make_float2(1.0f, 1.0f) : *reinterpret_cast<const float2*>(&own.scale(i).key_back);
    }
#pragma unroll
    for (int n = 0; n < batch_rows; ++n) {
      const int i = begin + n;
      if (i > 0) erase = erase * decay[i], query = query * decay[i];
      own.store<E>(own.b, i, unpack<Half>(b[n]) * erase * back[n].x);
      own.store<E>(own.q, i, unpack<Half>(q[n]) * query * back[n].y);
    }
  }
  float2 restored = f.next * f.after;
#pragma unroll
  for (int end = strip_rows; end > 0; end -= batch_rows) {
    std::uint32_t k[batch_rows];
#pragma unroll
    for (int n = 0; n < batch_rows; ++n) k[n] = own.raw(own.k, end - 1 - n);
#pragma unroll
    for (int n = 0; n < batch_rows; ++n) {
      const int i = end - 1 - n;
      if (i < strip_rows - 1) restored = restored * decay[i + 1];
      own.store<Half>(own.k, i, unpack<Half>(k[n]) * restored);
    }
  }
}

/// Task t of 8: for b o k or q, 16 upper rows of either span, half of their lower rows.
struct JoinTask {
  unsigned query, half, part;  ///< part: which 16 of the 32 upper rows
  float far[2][4], near[4];

  template <int padded_k>
  __device__ __forceinline__ void run(const Strip& own, int far_tile, int near_tile, unsigned task) {
    const int lane = threadIdx.x % 32;
    query = task % 4 / 2, part = task % 2, half = task / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) far[0][i] = far[1][i] = near[i] = 0.0f;
    const std::uint32_t memory = shared_address(own.memory);
    const std::uint32_t upper = memory + (query ? own.q : own.b), lower = memory + own.k;
    const std::uint32_t far_factors = memory + far_tile, near_factors = memory + near_tile;
#pragma unroll
    for (int s = 0; s < padded_k / 16; ++s) {
      std::uint32_t a[4], b[4], f[4];
      load_a(a, upper, 32 + 16 * part, 16 * s);
      load_a(f, far_factors, 32 + 16 * part, 16 * s);
      multiply_halves(a, f);
      load_b(b, lower, 16 * half, 16 * s);
      load_b(f, far_factors, 16 * half, 16 * s);
      multiply_halves(b, f);
      multiply_add<Half>(far[0], a, b[0], b[1]);
      multiply_add<Half>(far[1], a, b[2], b[3]);
    }
    const std::uint32_t lower_at = unit_offset(32 * part + 8 * half + lane % 8, 8 * (lane / 8));
#pragma unroll
    for (int s = 0; s < padded_k / 16; s += 2) {
      const std::uint32_t at = (lower_at ^ (32 * (s % 4))) + s / 4 * panel_bytes;
      std::uint32_t a[4], b[4], f[4];
      load_matrices(b, lower + at);
      load_matrices(f, near_factors + at);
      multiply_halves(b, f);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        load_a(a, upper, 16 + 32 * part, 16 * (s + t));
        load_a(f, near_factors, 16 + 32 * part, 16 * (s + t));
        multiply_halves(a, f);
        multiply_add<Half>(near, a, b[2 * t], b[2 * t + 1]);
      }
    }
  }
  /// put(query, row, column, x, y): two neighbouring columns.
  template <class Put>
  __device__ __forceinline__ void write(const Put& put) const {
    const unsigned i = threadIdx.x % 32 / 4, j = 2 * (threadIdx.x % 4);
#pragma unroll
    for (unsigned part8 = 0; part8 < 2; ++part8) {
      const unsigned d = 2 * part8;
      put(query, 32 + 16 * part + i + 8 * part8, 16 * half + j, far[0][d], far[0][d + 1]);
      put(query, 32 + 16 * part + i + 8 * part8, 16 * half + 8 + j, far[1][d], far[1][d + 1]);
      put(query, 16 + 32 * part + i + 8 * part8, 32 * part + 8 * half + j, near[d], near[d + 1]);
    }
  }
};

}  // namespace deltaport::recurrence::cuda
