// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_levels.cuh"

/// Gradients of the products of gdn2_levels.cuh, by the same levels. With F the factors of a level, and the entries of
/// dP and dL that belong to it:
///   u += F o dP (F o k);  t += F o dL (F o k);  m += F o (dP^T (F o q) + dL^T (F o b o k))
/// Upper rows get u and t, from lower rows; lower rows get m, and
///   back += (F o k) o (dP^T (F o q) + dL^T (F o b o k))
/// which is k o m but for a rounding, that of F o k as in u and t. For g a pair of rows then counts the same above and
/// below and leaves nothing in the rows before both; of neighbours, which are what strong decay leaves, exactly nothing,
/// since the upper one's F is 1.
///
/// A warp has a strip of 16 rows and 32 channels, 16 at a time, and makes the transposed sums: tiles come by
/// load_a_transposed, so that one fragment of a factor serves as what rows are multiplied with and what products are
/// multiplied with, and dP and dL are the other operand as they lie. Register 4 n + 2 c + e of a sum belongs to row
/// 8 n + 2 (lane % 4) + e and channel 8 c + lane / 4; fragments hold the same two by two. A lane then has both rows of
/// the pairs of span 1.
namespace deltaport::recurrence::cuda {

using Fragment = std::uint32_t[4];

/// d (16 x 8) = a (16 x 16) b (16 x 8).
template <class E = Half>
__device__ __forceinline__ void multiply_first(float (&d)[4], const Fragment& a, std::uint32_t b0,
                                               std::uint32_t b1) {
  if constexpr (__is_same(E, Bf16)) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  }
}
/// d (16 x 8) = a (16 x 8) b (8 x 8): rows 0 to 7 of a in a0, rows 8 to 15 in a1.
template <class E = Half>
__device__ __forceinline__ void multiply_first(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                               std::uint32_t b) {
  if constexpr (__is_same(E, Bf16)) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
  }
}

/// Whether a lane's elements (i, j) and (i, j + 1) of an 8 x 8 block, i = lane / 4, belong to the level of span 4 or 2, i
/// upper and j lower; or (j, i) and (j + 1, i), `transposed`.
template <unsigned span, bool transposed>
__device__ __forceinline__ bool belongs() {
  const unsigned lane = threadIdx.x % 32, i = lane / 4, j = lane % 4 * 2, upper = transposed ? j : i;
  return (i ^ j) / span % (8 / span) == 1 && (upper & span) != 0;
}

/// dP and dL (which = 0, 1) as blocks of 16 x 16 with j <= i, a 16-byte unit h of row i at unit h ^ (i / 4 % 2): free of
/// bank conflicts, by rows and by columns.
constexpr unsigned score_block_bytes = 512, score_bytes = 10 * score_block_bytes;
__device__ __forceinline__ unsigned score_block(unsigned which, unsigned row, unsigned column) {
  return which * score_bytes + (row * (row + 1) / 2 + column) * score_block_bytes;
}
__device__ __forceinline__ unsigned score_unit(unsigned i, unsigned h) {
  return i * 32 + ((h ^ i / 4 % 2) << 4);
}
/// What a lane adds to a block's address: as rows_first and columns_first of a tile. columns_first by rows and
/// rows_first transposed give the right operands of rows 0 to 7 in registers 0 and 1, those of rows 8 to 15 in 2 and 3.
__device__ __forceinline__ unsigned score_rows() {
  const unsigned t = threadIdx.x;
  return (t & 15) << 5 | ((t ^ t << 2) & 16);
}
__device__ __forceinline__ unsigned score_columns() {
  const unsigned t = threadIdx.x;
  return (t & 7) << 5 | (t & 16) << 4 | ((t << 1 ^ t << 2) & 16);
}
/// Of one element of a block.
__device__ __forceinline__ unsigned score_element(unsigned i, unsigned j) {
  return score_unit(i, j / 8) + 2 * (j % 8);
}

/// Factors of span 32 (`wide`) or 16 to a tile of 64 rows: half of stage_joins.
template <bool wide>
__device__ __forceinline__ void stage_join(const Strip& own, const float2 (&decay)[strip_rows],
                                           const StripFactors& f, int tile) {
  const float2 middle = wide ? f.middle : make_float2(1.0f, 1.0f);
  if (wide ? own.strip >= 2 : own.strip % 2 == 1) {
    float2 factor = middle;
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) {
      if (i > 0) factor = factor * decay[i];
      own.store<Half>(tile, i, factor);
    }
  } else {
    float2 factor = wide ? f.next * middle : f.next;
#pragma unroll
    for (int i = strip_rows - 1; i >= 0; --i) {
      if (i < strip_rows - 1) factor = factor * decay[i + 1];
      own.store<Half>(tile, i, factor);
    }
  }
}

/// The sums of 16 channels.
constexpr unsigned gradient_channels = 32, gradient_groups = gradient_channels / 16;
struct LevelSums {
  float u[8], t[8], m[8], back[8];

  /// sum += F d for the rows from 8 n; `first`: there is no sum yet.
  template <bool first = false>
  __device__ __forceinline__ static void add(float (&sum)[8], unsigned n, const Fragment& f,
                                             const float (&d)[4]) {
#pragma unroll
    for (unsigned c = 0; c < 2; ++c) {
      const float2 factor = unpack<Half>(f[2 * n + c]);
      float &even = sum[4 * n + 2 * c], &odd = sum[4 * n + 2 * c + 1];
      even = first ? factor.x * d[2 * c] : even + factor.x * d[2 * c];
      odd = first ? factor.y * d[2 * c + 1] : odd + factor.y * d[2 * c + 1];
    }
  }
  /// To `back`; k: F o k of these rows, in two registers.
  template <bool first = false>
  __device__ __forceinline__ void add_back(unsigned n, std::uint32_t k0, std::uint32_t k1,
                                           const float (&d)[4]) {
    const Fragment k = {k0, k1, k0, k1};
    add<first>(back, n, k, d);
  }
};

/// The unit matrix as operand: 8 x 8 in a register.
template <class E>
__device__ __forceinline__ std::uint32_t unit_operand() {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t one = __is_same(E, Bf16) ? 0x3f80u : 0x3c00u;
  return lane / 8 != lane % 4 ? 0u : lane / 4 % 2 == 0 ? one : one << 16;
}
/// A fragment by rows to floats in the layout of LevelSums: times the unit matrix. `zero` is not told the compiler, which
/// would make the operand anew for every product.
template <class E>
__device__ __forceinline__ void transpose(float (&x)[8], const uint4& fragment, std::uint32_t unit,
                                          std::uint32_t zero) {
  const std::uint32_t units[4] = {unit, zero, zero, unit};
  float left[4], right[4];
  multiply_first<E>(left, units, fragment.x, fragment.y);
  multiply_first<E>(right, units, fragment.z, fragment.w);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    x[4 * n] = left[2 * n], x[4 * n + 1] = left[2 * n + 1];
    x[4 * n + 2] = right[2 * n], x[4 * n + 3] = right[2 * n + 1];
  }
}
/// The rows from 8 n of a fragment in the layout of LevelSums to floats.
template <class E>
__device__ __forceinline__ void unpack_rows(float (&x)[4], const Fragment& fragment, unsigned n) {
  const float2 left = unpack<E>(fragment[2 * n]), right = unpack<E>(fragment[2 * n + 1]);
  x[0] = left.x, x[1] = left.y, x[2] = right.x, x[3] = right.y;
}

/// Where a warp's tiles lie, as addresses of the lane's row in load_a_transposed: a tile at its byte offset from
/// `tiles`, of the own strip and the 16 channels at hand; blocks of dP and dL from `scores`.
struct LevelGradients {
  std::uint32_t tiles, scores;
  unsigned strip;
  LevelSums& sums;

  __device__ void load(Fragment& a, unsigned tile, int strips = 0) const {
    load_matrices_transposed(a, tiles + strips * (strip_rows * 128) + tile);
  }
  __device__ void block(Fragment& b, unsigned which, unsigned row, unsigned column) const {
    load_matrices(b, scores + score_block(which, row, column) + score_columns());
  }
  __device__ void block_transposed(Fragment& b, unsigned which, unsigned row, unsigned column) const {
    load_matrices_transposed(b, scores + score_block(which, row, column) + score_rows());
  }

  /// The levels 8, 4 and 2 in the strip. k, q, b: the tiles' fragments; the factors of a level follow those of the
  /// level before.
  __device__ void inside(const Fragment& k, const Fragment& q, const Fragment& b, unsigned factors) const {
    Fragment p, l, p_back, l_back;
    block(p, 0, strip, strip);
    block(l, 1, strip, strip);
    block_transposed(p_back, 0, strip, strip);
    block_transposed(l_back, 1, strip, strip);
    {
      Fragment f;
      load(f, factors);
      const std::uint32_t k0 = multiply_halves(k[0], f[0]), k1 = multiply_halves(k[1], f[1]);
      const Fragment upper = {multiply_halves(q[2], f[2]), multiply_halves(q[3], f[3]),
                              multiply_halves(b[2], f[2]), multiply_halves(b[3], f[3])};
      float u[4], t[4], m[4];
      multiply_first(u, k0, k1, p[2]);
      multiply_first(t, k0, k1, l[2]);
      multiply_first(m, upper, p_back[1], l_back[1]);
      LevelSums::add<true>(sums.u, 1, f, u);
      LevelSums::add<true>(sums.t, 1, f, t);
      LevelSums::add<true>(sums.m, 0, f, m);
      sums.add_back<true>(0, k0, k1, m);
    }
    narrower<4>(k, q, b, p, l, p_back, l_back, factors + chunk_rows * 128);
    narrower<2>(k, q, b, p, l, p_back, l_back, factors + 2 * chunk_rows * 128);
  }
  /// Rows 0 to 7 and rows 8 to 15 do not meet.
  template <unsigned span>
  __device__ void narrower(const Fragment& k, const Fragment& q, const Fragment& b, const Fragment& p,
                           const Fragment& l, const Fragment& p_back, const Fragment& l_back,
                           unsigned factors) const {
    const bool own = belongs<span, false>(), back = belongs<span, true>();
    Fragment f;
    load(f, factors);
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      const std::uint32_t f0 = f[2 * n], f1 = f[2 * n + 1];
      const std::uint32_t k0 = multiply_halves(k[2 * n], f0), k1 = multiply_halves(k[2 * n + 1], f1);
      const Fragment upper = {multiply_halves(q[2 * n], f0), multiply_halves(q[2 * n + 1], f1),
                              multiply_halves(b[2 * n], f0), multiply_halves(b[2 * n + 1], f1)};
      float u[4], t[4], m[4];
      multiply_first(u, k0, k1, own ? p[3 * n] : 0u);
      multiply_first(t, k0, k1, own ? l[3 * n] : 0u);
      multiply_first(m, upper, back ? p_back[3 * n] : 0u, back ? l_back[3 * n] : 0u);
      // The level before has given rows 8 to 15 of u and t and rows 0 to 7 of m.
      if (span == 4 && n == 0) {
        LevelSums::add<true>(sums.u, n, f, u);
        LevelSums::add<true>(sums.t, n, f, t);
      } else {
        LevelSums::add(sums.u, n, f, u);
        LevelSums::add(sums.t, n, f, t);
      }
      if (span == 4 && n == 1) {
        LevelSums::add<true>(sums.m, n, f, m);
        sums.add_back<true>(n, k0, k1, m);
      } else {
        LevelSums::add(sums.m, n, f, m);
        sums.add_back(n, k0, k1, m);
      }
    }
  }

  /// A span that joins strips, with `count` strips from `other` on the other side; tiles of k, q, b and of the factors.
  template <unsigned count>
  __device__ void join(bool upper, unsigned other, unsigned k, unsigned q, unsigned b,
                       unsigned factors) const {
    if (upper) {
      from_lower<count>(other, k, factors);
    } else {
      from_upper<count>(other, k, q, b, factors);
    }
  }
  template <unsigned count>
  __device__ void from_lower(unsigned other, unsigned k_tile, unsigned factors) const {
    float u[2][4], t[2][4];
    Fragment f;
#pragma unroll
    for (unsigned c = 0; c < count; ++c) {
      Fragment p, l, k;
      block(p, 0, strip, other + c);
      block(l, 1, strip, other + c);
      load(f, factors, static_cast<int>(other + c - strip));
      load(k, k_tile, static_cast<int>(other + c - strip));
      multiply_halves(k, f);
#pragma unroll
      for (unsigned n = 0; n < 2; ++n) {
        if (c == 0) {
          multiply_first(u[n], k, p[2 * n], p[2 * n + 1]);
          multiply_first(t[n], k, l[2 * n], l[2 * n + 1]);
        } else {
          multiply_add<Half>(u[n], k, p[2 * n], p[2 * n + 1]);
          multiply_add<Half>(t[n], k, l[2 * n], l[2 * n + 1]);
        }
      }
    }
    load(f, factors);
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      LevelSums::add(sums.u, n, f, u[n]);
      LevelSums::add(sums.t, n, f, t[n]);
    }
  }
  template <unsigned count>
  __device__ void from_upper(unsigned other, unsigned k_tile, unsigned q_tile, unsigned b_tile,
                             unsigned factors) const {
    float m[2][4];
    Fragment f;
#pragma unroll
    for (unsigned c = 0; c < count; ++c) {
      Fragment p, l, q, b;
      block_transposed(p, 0, other + c, strip);
      block_transposed(l, 1, other + c, strip);
      load(f, factors, static_cast<int>(other + c - strip));
      load(q, q_tile, static_cast<int>(other + c - strip));
      load(b, b_tile, static_cast<int>(other + c - strip));
      multiply_halves(q, f);
      multiply_halves(b, f);
#pragma unroll
      for (unsigned n = 0; n < 2; ++n) {
        if (c == 0) {
          multiply_first(m[n], q, p[2 * n], p[2 * n + 1]);
        } else {
          multiply_add<Half>(m[n], q, p[2 * n], p[2 * n + 1]);
        }
        multiply_add<Half>(m[n], b, l[2 * n], l[2 * n + 1]);
      }
    }
    Fragment k;
    load(f, factors);
    load(k, k_tile);
    multiply_halves(k, f);
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      LevelSums::add(sums.m, n, f, m[n]);
      sums.add_back(n, k[2 * n], k[2 * n + 1], m[n]);
    }
  }
};

}  // namespace deltaport::recurrence::cuda
