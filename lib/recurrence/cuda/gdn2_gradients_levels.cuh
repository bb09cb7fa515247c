// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_gradients.cuh"
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

/// What a lane adds to the address of a block of dP or dL (see score_block): as rows_first and columns_first of a tile.
/// columns_first by rows and rows_first transposed give the right operands of rows 0 to 7 in registers 0 and 1, those of
/// rows 8 to 15 in 2 and 3.
__device__ __forceinline__ unsigned score_rows() {
  return threadIdx.x % 32 << 4;
}
__device__ __forceinline__ unsigned score_columns() {
  const unsigned t = threadIdx.x;
  return (t & 7) << 4 | (t & 8) << 5 | (t & 16) << 3;
}
/// Of one element of a block.
__device__ __forceinline__ unsigned score_element(unsigned i, unsigned j) {
  return j / 8 * 256 + i / 8 * 128 + i % 8 * 16 + j % 8 * 2;
}

/// What a thread stages: eight rows, those of its warp, of two channels. `rows`: address of the first of them, in a tile
/// at the beginning of shared memory.
struct RowOctet {
  std::uint32_t rows;

  template <class E>
  __device__ __forceinline__ void store(int tile, unsigned i, float2 x) const {
    store_shared((rows ^ 16 * i) + 128 * i + tile, pack<E>(x.x, x.y));  // unit_offset
  }
  __device__ __forceinline__ void store(int tile, const float2 (&x)[8]) const {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) store<Half>(tile, i, x[i]);
  }
  __device__ __forceinline__ void store(int tile, const float2 (&x)[8], float2 factor) const {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) store<Half>(tile, i, x[i] * factor);
  }
};
/// Products of decays in an octet: from the row behind the first to each, and from behind each to the last.
struct DecayProducts {
  float2 to[8], behind[8];
};
/// The factors of the spans 4 and 2 to their tiles, and the decays of odd rows to the even ones of the next.
__device__ __forceinline__ DecayProducts stage_octet(const RowOctet& own, const float2 (&d)[8], int tile) {
  constexpr int bytes = chunk_rows * 128;
  const float2 one = {1.0f, 1.0f}, d12 = d[1] * d[2], d34 = d[3] * d[4], d56 = d[5] * d[6], d67 = d[6] * d[7],
               d567 = d[5] * d67, d1234 = d12 * d34;
  own.store(tile, {d1234, d[2] * d34, d34, d[4], one, d[5], d56, d567});
  own.store(tile + bytes, {d12, d[2], one, d[3], d56, d[6], one, d[7]});
#pragma unroll
  for (unsigned i = 0; i < 8; i += 2) own.store<Half>(tile + 2 * bytes, i, d[i + 1]);
  const float2 d4567 = d[4] * d567, d34567 = d[3] * d4567, d234567 = d[2] * d34567;
  return {{one, d[1], d12, d12 * d[3], d1234, d1234 * d[5], d1234 * d56, d1234 * d567},
          {d[1] * d234567, d234567, d34567, d4567, d567, d67, d[7], one}};
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
      even = first ? __fmul_rn(factor.x, d[2 * c]) : __fmaf_rn(factor.x, d[2 * c], even);
      odd = first ? __fmul_rn(factor.y, d[2 * c + 1]) : __fmaf_rn(factor.y, d[2 * c + 1], odd);
    }
  }
  /// sum += factor F d, one factor a channel.
  __device__ __forceinline__ static void add_scaled(float (&sum)[8], unsigned n, const Fragment& f,
                                                    const float (&d)[4], const float (&factor)[2]) {
#pragma unroll
    for (unsigned c = 0; c < 2; ++c) {
      const float2 x = unpack<Half>(f[2 * n + c]) * factor[c];
      float &even = sum[4 * n + 2 * c], &odd = sum[4 * n + 2 * c + 1];
      even = __fmaf_rn(x.x, d[2 * c], even), odd = __fmaf_rn(x.y, d[2 * c + 1], odd);
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

/// What a lane adds to the address of an 8 x 8 unit matrix, behind which a row of zeroes lies, for load_matrices to give a
/// unit matrix of 16 x 16. It comes from memory since the compiler would make its registers anew for every product.
__device__ __forceinline__ unsigned unit_row() {
  const unsigned t = threadIdx.x;
  return ((t >> 3 ^ t >> 4) & 1) != 0 ? 128 : (t & 7) << 4;
}
/// What a lane makes of its number, in one register: loops over channels would make it again, for want of registers.
struct LaneNotes {
  std::uint32_t bits;

  __device__ static LaneNotes make() {
    LaneNotes notes{(belongs<4, false>() ? 1u : 0u) | (belongs<4, true>() ? 2u : 0u) |
                    (belongs<2, false>() ? 4u : 0u) | (belongs<2, true>() ? 8u : 0u) | unit_row() |
                    score_columns() << 14 | score_rows() << 23};
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(notes.bits));  // as in hide
#endif
    return notes;
  }
  template <unsigned span, bool transposed>
  __device__ bool on_level() const {
    return (bits & (span == 4 ? 1u : 4u) << (transposed ? 1 : 0)) != 0;
  }
  __device__ unsigned unit() const {
    return bits & 0xf0u;
  }
  __device__ unsigned columns() const {
    return bits >> 14 & 0x1f0u;
  }
  __device__ unsigned rows() const {
    return bits >> 23;
  }
};
/// A fragment by rows to floats in the layout of LevelSums: times the unit matrix.
template <class E>
__device__ __forceinline__ void transpose(float (&x)[8], const uint4& fragment, const Fragment& unit) {
  float left[4], right[4];
  multiply_first<E>(left, unit, fragment.x, fragment.y);
  multiply_first<E>(right, unit, fragment.z, fragment.w);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    x[4 * n] = left[2 * n], x[4 * n + 1] = left[2 * n + 1];
    x[4 * n + 2] = right[2 * n], x[4 * n + 3] = right[2 * n + 1];
  }
}
/// A number that the compiler does not know to be the same.
__device__ __forceinline__ void hide(std::int64_t& x) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(x));
#endif
}
/// The thread, asked for again: what is made of it is not kept in registers through loops.
__device__ __forceinline__ unsigned thread_again() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
/// The rows from 8 n of a fragment in the layout of LevelSums to floats.
template <class E>
__device__ __forceinline__ void unpack_rows(float (&x)[4], const Fragment& fragment, unsigned n) {
  const float2 left = unpack<E>(fragment[2 * n]), right = unpack<E>(fragment[2 * n + 1]);
  x[0] = left.x, x[1] = left.y, x[2] = right.x, x[3] = right.y;
}

/// Where a warp's tiles lie, as addresses of the lane's row in load_a_transposed: a tile at its byte offset from
/// `tiles`, of the own strip and the 16 channels at hand; the strip's diagonal block of dP by rows and by columns.
struct LevelGradients {
  std::uint32_t tiles, rows, columns;
  LaneNotes notes;
  unsigned strip;
  LevelSums& sums;

  static constexpr unsigned strip_bytes = strip_rows * 128;
  /// On the span of 32 rows, what the factors of the own strip are multiplied with, and those of the outer strip on the
  /// other side: decays between their anchors and its, 1 for the inner strips. Of the lane's two channels.
  struct Outer {
    float own[2], other[2];
  };

  __device__ void load(Fragment& a, unsigned tile) const { load_matrices_transposed(a, tiles + tile); }

  /// The levels 8, 4 and 2 in the strip. k, q, b: the tiles' fragments; the factors of a level follow those of the
  /// level before.
  __device__ void inside(const Fragment& k, const Fragment& q, const Fragment& b, unsigned factors) const {
    Fragment p, l, p_back, l_back;
    load_matrices(p, columns);
    load_matrices(l, columns + score_bytes);
    load_matrices_transposed(p_back, rows);
    load_matrices_transposed(l_back, rows + score_bytes);
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
    const bool own = notes.on_level<span, false>(), back = notes.on_level<span, true>();
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

  /// A span that joins strips, with `count` strips from `other` on the other side; `upper` and `lower` are the factors of
  /// the own rows, `upper_tile` and `lower_tile` those of all.
  template <unsigned count>
  __device__ void from_lower(unsigned other, const Fragment& upper, unsigned k_tile, unsigned lower_tile,
                             const Outer& outer) const {
    const std::uint32_t from = tiles + (other - strip) * strip_bytes,
                        block = columns + (other - strip) * score_block_bytes;
    float u[2][4], t[2][4];
#pragma unroll
    for (unsigned c = 0; c < count; ++c) {
      Fragment p, l, f, k;
      load_matrices_transposed(k, from + c * strip_bytes + k_tile);
      load_matrices_transposed(f, from + c * strip_bytes + lower_tile);
      load_matrices(p, block + c * score_block_bytes);
      load_matrices(l, block + c * score_block_bytes + score_bytes);
      multiply_halves(k, f);
      if (count == 2 && c == 0) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          k[i] = multiply_halves(k[i], pack<Half>(outer.other[i % 2], outer.other[i % 2]));
      }
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
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      if (count == 1) {
        LevelSums::add(sums.u, n, upper, u[n]);
        LevelSums::add(sums.t, n, upper, t[n]);
      } else {
        LevelSums::add_scaled(sums.u, n, upper, u[n], outer.own);
        LevelSums::add_scaled(sums.t, n, upper, t[n], outer.own);
      }
    }
  }
  template <unsigned count>
  __device__ void from_upper(unsigned other, const Fragment& lower, const Fragment& k, unsigned q_tile,
                             unsigned b_tile, unsigned upper_tile, const Outer& outer) const {
    float m[2][4];
#pragma unroll
    for (unsigned i = 0; i < count; ++i) {
      const unsigned c = count - 1 - i;  // the outer strip first
      const std::uint32_t from = tiles + (other + c - strip) * strip_bytes,
                          block = rows + (score_block(0, other + c, strip) - score_block(0, strip, strip));
      Fragment p, l, f, q, b;
      load_matrices_transposed(q, from + q_tile);
      load_matrices_transposed(f, from + upper_tile);
      load_matrices_transposed(p, block);
      load_matrices_transposed(b, from + b_tile);
      load_matrices_transposed(l, block + score_bytes);
      multiply_halves(q, f);
      multiply_halves(b, f);
#pragma unroll
      for (unsigned n = 0; n < 2; ++n) {
        if (i == 0) {
          multiply_first(m[n], q, p[2 * n], p[2 * n + 1]);
        } else {
#pragma unroll
          for (unsigned j = 0; j < 4; ++j) m[n][j] *= outer.other[j / 2];
          multiply_add<Half>(m[n], q, p[2 * n], p[2 * n + 1]);
        }
        multiply_add<Half>(m[n], b, l[2 * n], l[2 * n + 1]);
      }
    }
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      if (count == 2) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) m[n][j] *= outer.own[j / 2];
      }
      LevelSums::add(sums.m, n, lower, m[n]);
      sums.add_back(n, multiply_halves(k[2 * n], lower[2 * n]),
                    multiply_halves(k[2 * n + 1], lower[2 * n + 1]), m[n]);
    }
  }
};

}  // namespace deltaport::recurrence::cuda
