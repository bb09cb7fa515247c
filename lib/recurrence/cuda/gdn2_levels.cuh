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
/// Operands are binary16: rows of q and k scaled to length 1, so that their range is safe, and factors; multiplied in
/// pairs. Three roundings of 2^-12 are what one of tf32 is, at half the bytes.
///
/// A thread of gdn2_channels owns a strip of 16 rows and two neighbouring channels; gdn2_prepare has octets, see
/// gdn2_spans.cuh.
namespace deltaport::recurrence::cuda {

constexpr int strip_rows = 16;

/// What a row is multiplied with: reciprocal norms, and what takes a row of length 1 back to the row that counts.
struct RowScale {
  float key, query, key_back, query_back;
};

/// A thread's strip and channels. The tiles at byte offsets k, q, b hold what the caller gave, then k, q and b o k of
/// length 1 in binary16.
struct Strip {
  unsigned char* memory;
  int k, q, b;
  const RowScale* rows;  ///< of the chunk
  int strip, channel;
  std::uint32_t first = unit_offset(strip_rows * strip, channel / 8 * 8) + 2 * (channel % 8);

  /// Byte offset in a tile of 64 rows: unit_offset, told the compiler in few instructions.
  __device__ std::uint32_t at(int i) const { return (first ^ (i % 8 * 16u)) + i * 128u; }
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

}  // namespace deltaport::recurrence::cuda
