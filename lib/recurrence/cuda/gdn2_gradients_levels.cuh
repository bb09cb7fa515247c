// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_levels.cuh"

/// Gradients of the products of gdn2_levels.cuh, by the same levels. With F the factors of a level, and the entries of
/// dP and dL that belong to it:
///   u += F o dP (F o k);  t += F o dL (F o k);  m += F o (dP^T (F o q) + dL^T (F o b o k))
/// Upper rows get u and t, from lower rows; lower rows get m. A warp has a strip of 16 rows and 32 channels, and sums in
/// the layout of accumulators: register 8 g + j of a lane is register j of channels 16 g to 16 g + 15 of these.
namespace deltaport::recurrence::cuda {

using Fragment = std::uint32_t[4];

/// d (16 x 8) = a (16 x 16) b (16 x 8) in binary16.
__device__ __forceinline__ void multiply_first(float (&d)[4], const Fragment& a, std::uint32_t b0,
                                               std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
/// d (16 x 8) = a (16 x 8) b (8 x 8): rows 0 to 7 of a in a0, rows 8 to 15 in a1.
__device__ __forceinline__ void multiply_first(float (&d)[4], std::uint32_t a0, std::uint32_t a1,
                                               std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
}

/// Which of the elements (i, j) and (i, j + 1) of a strip's 16 x 16 block belong to a level, i upper and j lower; or
/// (j, i) and (j + 1, i), `transposed`.
template <unsigned span, bool transposed>
__device__ __forceinline__ std::uint32_t level_mask(unsigned row, unsigned column) {
  const auto belongs = [](unsigned i, unsigned j) {
    return (i & span) != 0 && (j & span) == 0 && i / (2 * span) == j / (2 * span);
  };
  const bool first = transposed ? belongs(column, row) : belongs(row, column),
             second = transposed ? belongs(column + 1, row) : belongs(row, column + 1);
  return (first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u);
}

/// dP and dL (which = 0, 1) as blocks of 16 x 16 with j <= i, a 16-byte unit h of row i at unit h ^ (i / 4 % 2): free of
/// bank conflicts, by rows and by columns.
constexpr int score_block_bytes = 512, score_bytes = 10 * score_block_bytes;
__device__ __forceinline__ int score_block(int which, int row, int column) {
  return which * score_bytes + (row * (row + 1) / 2 + column) * score_block_bytes;
}
__device__ __forceinline__ unsigned score_unit(unsigned i, unsigned h) {
  return i * 32 + ((h ^ i / 4 % 2) << 4);
}
/// What a lane adds to a block's address: as rows_first and columns_first of a tile.
__device__ __forceinline__ unsigned score_rows() {
  const unsigned lane = threadIdx.x % 32;
  return score_unit(lane % 16, lane / 16);
}
__device__ __forceinline__ unsigned score_columns() {
  const unsigned lane = threadIdx.x % 32;
  return score_unit(lane % 8 + 8 * (lane / 16), lane / 8 % 2);
}
__device__ __forceinline__ int score_offset(unsigned i, unsigned j) {
  return score_block(0, i / 16, j / 16) + score_unit(i % 16, j % 16 / 8) + 2 * (j % 8);
}

/// The sums of a warp.
constexpr int gradient_channels = 32, gradient_groups = gradient_channels / 16;
struct LevelSums {
  static constexpr int n = 8 * gradient_groups;
  float u[n], t[n], m[n];

  /// sum[j] += F d for the two 16 x 8 accumulators of 16 channels from 16 g; f: F as load_a gives it.
  __device__ __forceinline__ static void add(float (&sum)[n], int g, const Fragment& f,
                                             const float (&left)[4], const float (&right)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 factor = unpack<Half>(f[i]);
      const float(&d)[4] = i < 2 ? left : right;
      sum[8 * g + 2 * i] += factor.x * d[2 * (i % 2)];
      sum[8 * g + 2 * i + 1] += factor.y * d[2 * (i % 2) + 1];
    }
  }
};

/// Factors of span 32 (`wide`) or 16 to a tile of 64 rows: half of stage_joins.
template <bool wide>
__device__ __forceinline__ void stage_join(const Strip& own, const float2 (&decay)[strip_rows],
                                           const StripFactors& f, int tile) {
  const float2 middle = wide ? f.middle : make_float2(1.0f, 1.0f);
  const auto store = [&](int i, float2 factor) { own.store<Half>(tile, i, wide ? factor * middle : factor); };
  if (wide ? own.strip >= 2 : own.strip % 2 == 1) {
    float2 factor = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) {
      if (i > 0) factor = factor * decay[i];
      store(i, factor);
    }
  } else {
    float2 factor = f.next;
#pragma unroll
    for (int i = strip_rows - 1; i >= 0; --i) {
      if (i < strip_rows - 1) factor = factor * decay[i + 1];
      store(i, factor);
    }
  }
}

/// The work of a warp: tiles of k, q and b o k (rows of length 1, binary16) as in Strip, the blocks of dP and dL at byte
/// offset `scores`.
struct GradientStrip {
  unsigned char* memory;
  int k, q, b, scores;
  int strip, first;  ///< channel
};
struct LevelGradients {
  const GradientStrip& own;
  LevelSums& sums;

  __device__ std::uint32_t at(int offset) const { return shared_address(own.memory) + offset; }
  __device__ int channels(int g) const { return own.first + 16 * g; }
  __device__ int level_channels(int g) const { return own.first % 64 + 16 * g; }
  __device__ void block(Fragment& a, int which, int row, int column) const {
    load_matrices(a, at(own.scores) + score_block(which, row, column) + score_rows());
  }
  __device__ void block_transposed(Fragment& a, int which, int row, int column) const {
    load_matrices_transposed(a, at(own.scores) + score_block(which, row, column) + score_columns());
  }
  /// Rows of a strip as B operand, times factors.
  __device__ void rows(Fragment& b, int tile, int strip, int g, const Fragment& factors) const {
    load_b_transposed(b, at(tile), strip_rows * strip, channels(g));
    multiply_halves(b, factors);
  }

  /// The levels 8, 4, 2, 1 in the strip; `levels`: their factors, as stage_level puts them.
  __device__ void inside(int levels) const {
    Fragment p, l, p_back, l_back;
    block(p, 0, own.strip, own.strip);
    block(l, 1, own.strip, own.strip);
    block_transposed(p_back, 0, own.strip, own.strip);
    block_transposed(l_back, 1, own.strip, own.strip);
    widest(p, l, p_back, l_back, levels);
    narrower<4>(p, l, p_back, l_back, levels + level_bytes);
    narrower<2>(p, l, p_back, l_back, levels + 2 * level_bytes);
    narrower<1>(p, l, p_back, l_back, levels + 3 * level_bytes);
  }
  /// Span 8: rows 8 to 15 against rows 0 to 7, so that u and t fill an accumulator.
  __device__ void widest(const Fragment& p, const Fragment& l, const Fragment& p_back, const Fragment& l_back,
                         int factors) const {
    const Fragment back = {p_back[2], 0u, l_back[2], 0u};
#pragma unroll
    for (int g = 0; g < gradient_groups; ++g) {
      Fragment f, k, q, b;
      load_b_transposed(f, at(factors), 0, level_channels(g));
      load_b_transposed(k, at(own.k), strip_rows * own.strip, channels(g));
      load_b_transposed(q, at(own.q), strip_rows * own.strip, channels(g));
      load_b_transposed(b, at(own.b), strip_rows * own.strip, channels(g));
      float upper[2][4], lower[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        multiply_first(upper[n], p[1], l[1], multiply_halves(k[2 * n], f[2 * n]));
        multiply_first(lower[n], back, multiply_halves(q[2 * n + 1], f[2 * n + 1]),
                       multiply_halves(b[2 * n + 1], f[2 * n + 1]));
      }
      load_a(f, at(factors), 0, level_channels(g));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 first = unpack<Half>(f[2 * n]), second = unpack<Half>(f[2 * n + 1]);
        const int j = 8 * g + 4 * n;
        sums.m[j] += first.x * lower[n][0], sums.m[j + 1] += first.y * lower[n][1];
        sums.u[j + 2] += second.x * upper[n][0], sums.u[j + 3] += second.y * upper[n][1];
        sums.t[j + 2] += second.x * upper[n][2], sums.t[j + 3] += second.y * upper[n][3];
      }
    }
  }
  template <unsigned span>
  __device__ void narrower(const Fragment& p, const Fragment& l, const Fragment& p_back,
                           const Fragment& l_back, int factors) const {
    const unsigned row = threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
    const std::uint32_t mask = level_mask<span, false>(row, column),
                        back = level_mask<span, true>(row, column);
    const Fragment p_own = {p[0] & mask, 0u, 0u, p[3] & mask}, l_own = {l[0] & mask, 0u, 0u, l[3] & mask};
    const Fragment p_other = {p_back[0] & back, 0u, 0u, p_back[3] & back},
                   l_other = {l_back[0] & back, 0u, 0u, l_back[3] & back};
#pragma unroll
    for (int g = 0; g < gradient_groups; ++g) {
      Fragment f, k, q, b;
      load_b_transposed(f, at(factors), 0, level_channels(g));
      rows(k, own.k, own.strip, g, f);
      rows(q, own.q, own.strip, g, f);
      rows(b, own.b, own.strip, g, f);
      load_a(f, at(factors), 0, level_channels(g));
      float u[2][4], t[2][4], m[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        multiply_first(u[n], p_own, k[2 * n], k[2 * n + 1]);
        multiply_first(t[n], l_own, k[2 * n], k[2 * n + 1]);
        multiply_first(m[n], p_other, q[2 * n], q[2 * n + 1]);
        multiply_add<Half>(m[n], l_other, b[2 * n], b[2 * n + 1]);
      }
      LevelSums::add(sums.u, g, f, u[0], u[1]);
      LevelSums::add(sums.t, g, f, t[0], t[1]);
      LevelSums::add(sums.m, g, f, m[0], m[1]);
    }
  }

  /// A span that joins strips, with `count` strips from `other` on the other side; factors as stage_joins puts them.
  template <int count>
  __device__ void join(bool upper, int other, int factors) const {
    if (upper) {
      from_lower<count>(other, factors);
    } else {
      from_upper<count>(other, factors);
    }
  }
  template <int count>
  __device__ void from_lower(int other, int factors) const {
    Fragment p[count], l[count];
#pragma unroll
    for (int c = 0; c < count; ++c) {
      block(p[c], 0, own.strip, other + c);
      block(l[c], 1, own.strip, other + c);
    }
#pragma unroll
    for (int g = 0; g < gradient_groups; ++g) {
      float u[2][4] = {}, t[2][4] = {};
      Fragment f, k;
#pragma unroll
      for (int c = 0; c < count; ++c) {
        load_b_transposed(f, at(factors), strip_rows * (other + c), channels(g));
        rows(k, own.k, other + c, g, f);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          multiply_add<Half>(u[n], p[c], k[2 * n], k[2 * n + 1]);
          multiply_add<Half>(t[n], l[c], k[2 * n], k[2 * n + 1]);
        }
      }
      load_a(f, at(factors), strip_rows * own.strip, channels(g));
      LevelSums::add(sums.u, g, f, u[0], u[1]);
      LevelSums::add(sums.t, g, f, t[0], t[1]);
    }
  }
  template <int count>
  __device__ void from_upper(int other, int factors) const {
    Fragment p[count], l[count];
#pragma unroll
    for (int c = 0; c < count; ++c) {
      block_transposed(p[c], 0, other + c, own.strip);
      block_transposed(l[c], 1, other + c, own.strip);
    }
#pragma unroll
    for (int g = 0; g < gradient_groups; ++g) {
      float m[2][4] = {};
      Fragment f, q, b;
#pragma unroll
      for (int c = 0; c < count; ++c) {
        load_b_transposed(f, at(factors), strip_rows * (other + c), channels(g));
        rows(q, own.q, other + c, g, f);
        rows(b, own.b, other + c, g, f);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          multiply_add<Half>(m[n], p[c], q[2 * n], q[2 * n + 1]);
          multiply_add<Half>(m[n], l[c], b[2 * n], b[2 * n + 1]);
        }
      }
      load_a(f, at(factors), strip_rows * own.strip, channels(g));
      LevelSums::add(sums.m, g, f, m[0], m[1]);
    }
  }
};

}  // namespace deltaport::recurrence::cuda
