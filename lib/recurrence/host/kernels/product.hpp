// SPDX-License-Identifier: Apache-2.0
// Products of small row-major matrices in register tiles. What becomes of a sum is the caller's: put(row,
// column, sum) may scale it, mask it, add it to something, or write it straight to an output.
#pragma once

#include "recurrence/host/kernels/vector.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

constexpr int tile_vectors = DELTAPORT_HOST_BYTES == 64 ? 4 : 2;

/// Which steps of the inner dimension a tile of rows [i, i + r) takes: the rest of its left operand is zero.
struct All {
  int count;
  int begin(int) const { return 0; }
  int end(int, int) const { return count; }
};
struct UpToRow {  // lower triangular
  int begin(int) const { return 0; }
  int end(int i, int r) const { return i + r; }
};
struct FromRow {  // upper triangular
  int count;
  int begin(int i) const { return i; }
  int end(int, int) const { return count; }
};

/// a b, or a^T b when Turned. b has whole vectors in each row.
template <bool Turned, class Steps>
struct Term {
  const float* a;
  Index lda;
  const float* b;
  Index ldb;
  Steps steps;
};
template <class Steps>
Term<false, Steps> plain(const float* a, Index lda, const float* b, Index ldb, Steps steps) {
  return {a, lda, b, ldb, steps};
}
template <class Steps>
Term<true, Steps> turned(const float* a, Index lda, const float* b, Index ldb, Steps steps) {
  return {a, lda, b, ldb, steps};
}

template <int Rows, int Vectors, bool Turned, class Steps>
DELTAPORT_HOST_INLINE void add(Vector (&sum)[Rows][Vectors], int i, int j, const Term<Turned, Steps>& t) {
  const int begin = t.steps.begin(i), end = t.steps.end(i, Rows);
  const float* a = Turned ? t.a + begin * t.lda + i : t.a + i * t.lda + begin;
  const float* b = t.b + begin * t.ldb + j;
  const Index lda = t.lda, ldb = t.ldb;
  for (int l = begin; l < end; ++l, a += Turned ? lda : 1, b += ldb) {
    Vector b_row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) b_row[v] = load(b + v * width);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const float factor = Turned ? a[r] : a[r * lda];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] += factor * b_row[v];
    }
  }
}

/// Between two terms: row i of the sum so far times factor[i].
struct RowScale {
  const float* factor;
};
template <int Rows, int Vectors>
DELTAPORT_HOST_INLINE void add(Vector (&sum)[Rows][Vectors], int i, int, const RowScale& scale) {
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] *= scale.factor[i + r];
}
/// Between two terms: nothing.
struct NoScale {};
template <int Rows, int Vectors>
DELTAPORT_HOST_INLINE void add(Vector (&)[Rows][Vectors], int, int, const NoScale&) {}

template <int Rows, int Vectors, class Put, class... Terms>
__attribute__((noinline)) void tile(int i, int j, const Put& put, const Terms&... terms) {
  Vector sum[Rows][Vectors] = {};
  (add<Rows, Vectors>(sum, i, j, terms), ...);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) put(i + r, j + v * width, sum[r][v]);
}

/// Rows [i, i + Rows) and columns [begin, end).
template <int Rows, class Put, class... Terms>
DELTAPORT_HOST_INLINE void row_of_tiles(int i, int begin, int end, const Put& put, const Terms&... terms) {
  int j = begin;
  for (; j + tile_vectors * width <= end; j += tile_vectors * width)
    tile<Rows, tile_vectors>(i, j, put, terms...);
  if constexpr (tile_vectors > 2)
    if (j + 2 * width <= end) {
      tile<Rows, 2>(i, j, put, terms...);
      j += 2 * width;
    }
  if (j < end) tile<Rows, 1>(i, j, put, terms...);
}

/// Heights of 6 and 4 cover every multiple of 4.
DELTAPORT_HOST_INLINE bool takes_six(int left) {
  return left >= 6 && left != 8;
}

/// put(i, j, sum of the terms) for all i < rows, j < columns; rows a multiple of 4, columns of the width.
template <class Put, class... Terms>
inline void product(int rows, int columns, const Put& put, const Terms&... terms) {
  constexpr int panel = tile_vectors * width;
  for (int j = 0; j < columns; j += panel) {
    const int end = j + panel < columns ? j + panel : columns;
    for (int i = 0; i < rows;) {
      const bool six = takes_six(rows - i);
      if (six)
        row_of_tiles<6>(i, j, end, put, terms...);
      else
        row_of_tiles<4>(i, j, end, put, terms...);
      i += six ? 6 : 4;
    }
  }
}

/// The same for the vectors of a square result that reach its lower triangle.
template <class Put, class... Terms>
inline void lower_product(int rows, const Put& put, const Terms&... terms) {
  for (int i = 0; i < rows;) {
    const bool six = takes_six(rows - i);
    if (six)
      row_of_tiles<6>(i, 0, round_up(i + 6, width), put, terms...);
    else
      row_of_tiles<4>(i, 0, round_up(i + 4, width), put, terms...);
    i += six ? 6 : 4;
  }
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
