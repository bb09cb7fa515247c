// SPDX-License-Identifier: Apache-2.0
// Body of the tile product and the vector exponential for one instruction set. Compiled several times, each
// in its own file with its own flags and namespace. It must include nothing: an inline function of the
// standard library or of Kokkos that was compiled here could be chosen by the linker for every caller, on
// machines without these instructions.
//
// The including file defines DELTAPORT_TILE_NAMESPACE, DELTAPORT_TILE_BYTES (vector size) and
// DELTAPORT_TILE_VECTORS (vectors per row of the register tile).

namespace deltaport::tile {
namespace DELTAPORT_TILE_NAMESPACE {
namespace {

using Index = long long;
constexpr int tile_rows = 6;
constexpr int tile_vectors = DELTAPORT_TILE_VECTORS;
constexpr int depth = 256;  // k is added up in blocks of this many

template <class T>
struct Simd {
  static constexpr int width = DELTAPORT_TILE_BYTES / static_cast<int>(sizeof(T));
  static constexpr int panel = width * tile_vectors;
  typedef T Vector __attribute__((vector_size(DELTAPORT_TILE_BYTES)));
  typedef T Loose __attribute__((vector_size(DELTAPORT_TILE_BYTES), aligned(sizeof(T)), may_alias));

  static Vector load(const T* x) { return *reinterpret_cast<const Loose*>(x); }
  static void store(T* x, Vector v) { *reinterpret_cast<Loose*>(x) = v; }
};

template <class T>
struct Operand {
  const T* data;
  Index row, column;  // strides
};

/// C tile of Rows x columns from `k` steps. `b` has Vectors full vectors in each row.
template <class T, int Rows, int Vectors>
void multiply_tile(int k, Operand<T> a, const T* b, Index ldb, T alpha, T beta, T* c, Index ldc,
                   int columns) {
  using S = Simd<T>;
  typename S::Vector sum[Rows][Vectors] = {};
  const T* a_step = a.data;
  for (int l = 0; l < k; ++l, a_step += a.column, b += ldb) {
    typename S::Vector b_row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) b_row[v] = S::load(b + v * S::width);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const T factor = a_step[r * a.row];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] += factor * b_row[v];
    }
  }
  if (columns == Vectors * S::width) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        T* out = c + r * ldc + v * S::width;
        S::store(out, beta == T(0) ? alpha * sum[r][v] : alpha * sum[r][v] + beta * S::load(out));
      }
    return;
  }
  for (int r = 0; r < Rows; ++r) {
    T row[Vectors * S::width];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) S::store(row + v * S::width, alpha * sum[r][v]);
    T* out = c + r * ldc;
    if (beta == T(0))
      for (int j = 0; j < columns; ++j) out[j] = row[j];
    else
      for (int j = 0; j < columns; ++j) out[j] = row[j] + beta * out[j];
  }
}

template <class T, int Vectors>
void multiply_rows(int rows, int k, Operand<T> a, const T* b, Index ldb, T alpha, T beta, T* c, Index ldc,
                   int columns) {
  switch (rows) {
    case 1:
      return multiply_tile<T, 1, Vectors>(k, a, b, ldb, alpha, beta, c, ldc, columns);
    case 2:
      return multiply_tile<T, 2, Vectors>(k, a, b, ldb, alpha, beta, c, ldc, columns);
    case 3:
      return multiply_tile<T, 3, Vectors>(k, a, b, ldb, alpha, beta, c, ldc, columns);
    case 4:
      return multiply_tile<T, 4, Vectors>(k, a, b, ldb, alpha, beta, c, ldc, columns);
    case 5:
      return multiply_tile<T, 5, Vectors>(k, a, b, ldb, alpha, beta, c, ldc, columns);
    default:
      return multiply_tile<T, 6, Vectors>(k, a, b, ldb, alpha, beta, c, ldc, columns);
  }
}

/// Square transpose of width x width elements in registers, log2(width) stages of pairwise exchanges.
template <class T>
void transpose_block(const T* from, Index from_stride, T* to, Index to_stride) {
  using S = Simd<T>;
  constexpr int width = S::width;
#if defined(__GNUC__) && !defined(__clang__)
  typedef decltype(S::load(from) < S::load(from)) Mask;
  typename S::Vector r[width];
#pragma GCC unroll 16
  for (int i = 0; i < width; ++i) r[i] = S::load(from + i * from_stride);
#pragma GCC unroll 4
  for (int step = 1; step < width; step *= 2) {
    Mask low, high;
#pragma GCC unroll 16
    for (int j = 0; j < width; ++j) {
      low[j] = (j & step) ? width + j - step : j;
      high[j] = (j & step) ? width + j : j + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i)
      if ((i & step) == 0) {
        const typename S::Vector x = r[i], y = r[i + step];
        r[i] = __builtin_shuffle(x, y, low);
        r[i + step] = __builtin_shuffle(x, y, high);
      }
  }
#pragma GCC unroll 16
  for (int i = 0; i < width; ++i) S::store(to + i * to_stride, r[i]);
#else
  for (int i = 0; i < width; ++i)
    for (int j = 0; j < width; ++j) to[j * to_stride + i] = from[i * from_stride + j];
#endif
}

/// packed[l][j] = b[j][l], zero-filled to full vectors.
template <class T>
void pack_transposed(int k, int columns, const T* b, Index ldb, T* packed, int stride) {
  constexpr int width = Simd<T>::width;
  int j = 0;
  for (; j + width <= columns; j += width) {
    int l = 0;
    for (; l + width <= k; l += width)
      transpose_block(b + j * ldb + l, ldb, packed + Index{l} * stride + j, stride);
    for (; l < k; ++l)
      for (int i = 0; i < width; ++i) packed[Index{l} * stride + j + i] = b[(j + i) * ldb + l];
  }
  for (int l = 0; l < k; ++l)
    for (int i = j; i < stride; ++i) packed[Index{l} * stride + i] = i < columns ? b[i * ldb + l] : T(0);
}

/// packed[l][j] = b[l][j], zero-filled to full vectors.
template <class T>
void pack_tail(int k, int columns, const T* b, Index ldb, T* packed, int stride) {
  for (int l = 0; l < k; ++l)
    for (int j = 0; j < stride; ++j) packed[Index{l} * stride + j] = j < columns ? b[l * ldb + j] : T(0);
}

template <class T>
void multiply_panel(int vectors, int m, int k, Operand<T> a, const T* b, Index ldb, T alpha, T beta, T* c,
                    Index ldc, int columns) {
  for (int i = 0; i < m; i += tile_rows) {
    const int rows = m - i < tile_rows ? m - i : tile_rows;
    const Operand<T> a_rows{a.data + i * a.row, a.row, a.column};
    T* c_rows = c + i * ldc;
    switch (vectors) {
      case 1:
        multiply_rows<T, 1>(rows, k, a_rows, b, ldb, alpha, beta, c_rows, ldc, columns);
        break;
      case 2:
        multiply_rows<T, 2>(rows, k, a_rows, b, ldb, alpha, beta, c_rows, ldc, columns);
        break;
#if DELTAPORT_TILE_VECTORS == 4
      case 3:
        multiply_rows<T, 3>(rows, k, a_rows, b, ldb, alpha, beta, c_rows, ldc, columns);
        break;
#endif
      default:
        multiply_rows<T, tile_vectors>(rows, k, a_rows, b, ldb, alpha, beta, c_rows, ldc, columns);
    }
  }
}

template <class T>
void product(bool trans_a, bool trans_b, int m, int n, int k, T alpha, const T* a, Index lda, const T* b,
             Index ldb, T beta, T* c, Index ldc) {
  using S = Simd<T>;
  alignas(64) T packed[depth * S::panel];
  const Operand<T> left{a, trans_a ? 1 : lda, trans_a ? lda : 1};
  for (int l = 0; l == 0 || l < k; l += depth) {
    const int steps = k - l < depth ? k - l : depth;
    const T keep = l == 0 ? beta : T(1);
    const Operand<T> a_block{left.data + l * left.column, left.row, left.column};
    for (int j = 0; j < n; j += S::panel) {
      const int columns = n - j < S::panel ? n - j : S::panel;
      const int vectors = (columns + S::width - 1) / S::width;
      const T* b_panel = trans_b ? b + j * ldb + l : b + l * ldb + j;
      Index stride = ldb;
      if (trans_b || columns != vectors * S::width) {
        stride = vectors * S::width;
        if (trans_b)
          pack_transposed(steps, columns, b_panel, ldb, packed, static_cast<int>(stride));
        else
          pack_tail(steps, columns, b_panel, ldb, packed, static_cast<int>(stride));
        b_panel = packed;
      }
      multiply_panel(vectors, m, steps, a_block, b_panel, stride, alpha, keep, c + j, ldc, columns);
    }
  }
}

/// e^x for one vector: x = n ln 2 + r, a polynomial in r, then n into the exponent field. 0 below -87.3,
/// infinity above 88.7, NaN stays NaN.
Simd<float>::Vector exp_vector(Simd<float>::Vector x) {
  using V = Simd<float>::Vector;
  typedef decltype(x < x) Integers;
  V bounded = x;
  bounded = bounded < -87.33654f ? V{} - 87.33654f : bounded;
  bounded = bounded > 88.72283f ? V{} + 88.72283f : bounded;
  const V shifted = bounded * 1.44269504f + 12582912.0f;  // rounds to an integer in the low bits
  const V n = shifted - 12582912.0f;
  V r = bounded - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, so that n = 128 does not overflow the exponent field.
  const Integers exponent = __builtin_convertvector(n, Integers);
  const Integers half = exponent >> 1;
  const V scale_low = reinterpret_cast<V>((half + 127) << 23);
  const V scale_high = reinterpret_cast<V>((exponent - half + 127) << 23);
  V y = p * scale_low * scale_high;
  y = x < -87.33654f ? V{} : y;
  y = x > 88.72283f ? V{} + __builtin_inff() : y;
  return y;
}

void exp_all(Index n, const float* x, float* y) {
  using S = Simd<float>;
  Index i = 0;
  for (; i + S::width <= n; i += S::width) S::store(y + i, exp_vector(S::load(x + i)));
  if (i == n) return;
  float rest[S::width] = {};
  for (Index j = i; j < n; ++j) rest[j - i] = x[j];
  S::store(rest, exp_vector(S::load(rest)));
  for (Index j = i; j < n; ++j) y[j] = rest[j - i];
}

}  // namespace

void multiply(bool trans_a, bool trans_b, int m, int n, int k, float alpha, const float* a, long long lda,
              const float* b, long long ldb, float beta, float* c, long long ldc) {
  product(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void multiply(bool trans_a, bool trans_b, int m, int n, int k, double alpha, const double* a, long long lda,
              const double* b, long long ldb, double beta, double* c, long long ldc) {
  product(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void exponential(long long n, const float* x, float* y) {
  exp_all(n, x, y);
}

}  // namespace DELTAPORT_TILE_NAMESPACE
}  // namespace deltaport::tile
