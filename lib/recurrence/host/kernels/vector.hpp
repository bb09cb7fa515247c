// SPDX-License-Identifier: Apache-2.0
// Vectors of one instruction set. The including file defines DELTAPORT_HOST_ISA (namespace) and
// DELTAPORT_HOST_BYTES (vector size). Neither this nor any other header of the folder includes Kokkos or a
// template of the standard library: an inline function of theirs that was compiled here could be chosen by
// the linker for every caller, on machines without these instructions. Intrinsics are always inlined.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "recurrence/host/call.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

using Index = long long;
constexpr int width = DELTAPORT_HOST_BYTES / 4;  // floats of a vector

typedef float Vector __attribute__((vector_size(DELTAPORT_HOST_BYTES)));
typedef int Integers __attribute__((vector_size(DELTAPORT_HOST_BYTES)));
typedef unsigned Words __attribute__((vector_size(DELTAPORT_HOST_BYTES)));
typedef unsigned short Halves __attribute__((vector_size(DELTAPORT_HOST_BYTES / 2)));
typedef float LooseVector __attribute__((vector_size(DELTAPORT_HOST_BYTES), aligned(4), may_alias));
typedef unsigned short LooseHalves
    __attribute__((vector_size(DELTAPORT_HOST_BYTES / 2), aligned(2), may_alias));

#define DELTAPORT_HOST_INLINE inline __attribute__((always_inline))

constexpr int round_up(int n, int unit) {
  return (n + unit - 1) / unit * unit;
}
DELTAPORT_HOST_INLINE Vector splat(float x) {
  return x - Vector{};
}
DELTAPORT_HOST_INLINE Vector load(const float* x) {
  return *reinterpret_cast<const LooseVector*>(x);
}
DELTAPORT_HOST_INLINE void store(float* x, Vector v) {
  *reinterpret_cast<LooseVector*>(x) = v;
}
/// 0, 1, 2, ...
DELTAPORT_HOST_INLINE Integers lanes() {
  Integers x;
#pragma GCC unroll 16
  for (int i = 0; i < width; ++i) x[i] = i;
  return x;
}
DELTAPORT_HOST_INLINE Vector shuffle(Vector x, Vector y, Integers from) {
#if defined(__clang__) && defined(__AVX512F__)
  // Clang has no builtin for lanes that are not written as constants.
  return reinterpret_cast<Vector>(_mm512_permutex2var_ps(
      reinterpret_cast<__m512>(x), reinterpret_cast<__m512i>(from), reinterpret_cast<__m512>(y)));
#elif defined(__clang__) && defined(__AVX2__)
  const __m256i lane = reinterpret_cast<__m256i>(from);
  const Vector of_x = reinterpret_cast<Vector>(_mm256_permutevar8x32_ps(reinterpret_cast<__m256>(x), lane));
  const Vector of_y = reinterpret_cast<Vector>(_mm256_permutevar8x32_ps(reinterpret_cast<__m256>(y), lane));
  return from < width ? of_x : of_y;
#elif defined(__clang__)
  Vector out;
  for (int i = 0; i < width; ++i) out[i] = from[i] < width ? x[from[i]] : y[from[i] - width];
  return out;
#else
  return __builtin_shuffle(x, y, from);
#endif
}
/// Sum of all lanes, halves first.
DELTAPORT_HOST_INLINE float sum_of(Vector x) {
#pragma GCC unroll 4
  for (int half = width / 2; half > 0; half /= 2) x += shuffle(x, x, (lanes() + half) & (width - 1));
  return x[0];
}

/// e^x: x = n ln 2 + r, a polynomial in r, then n into the exponent field, in two factors so that n = 128
/// does not overflow it. 0 below -87.3, infinity above 88.7, NaN stays NaN.
DELTAPORT_HOST_INLINE Vector exponential(Vector x) {
  const Vector least = splat(-87.33654f), most = splat(88.72283f);
  Vector bounded = x < least ? least : x;
  bounded = bounded > most ? most : bounded;
  const Vector n = (bounded * 1.44269504f + 12582912.0f) - 12582912.0f;  // nearest integer
  const Vector r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Integers exponent = __builtin_convertvector(n, Integers);
  const Integers half = exponent >> 1;
  Vector y = p * reinterpret_cast<Vector>((half + 127) << 23);
  y *= reinterpret_cast<Vector>((exponent - half + 127) << 23);
  y = x < least ? Vector{} : y;
  return x > most ? splat(__builtin_inff()) : y;
}

/// to[j][i] = from[i][j], width x width, in log2(width) stages of pairwise exchanges.
inline void transpose_block(const float* from, Index from_stride, float* to, Index to_stride) {
  Vector r[width];
#pragma GCC unroll 16
  for (int i = 0; i < width; ++i) r[i] = load(from + i * from_stride);
#pragma GCC unroll 4
  for (int step = 1; step < width; step *= 2) {
    const Integers lane = lanes();
    const Integers odd = (lane & step) != 0;
    const Integers low = odd ? lane + (width - step) : lane;
    const Integers high = odd ? lane + width : lane + step;
#pragma GCC unroll 16
    for (int i = 0; i < width; ++i)
      if ((i & step) == 0) {
        const Vector x = r[i], y = r[i + step];
        r[i] = shuffle(x, y, low);
        r[i + step] = shuffle(x, y, high);
      }
  }
#pragma GCC unroll 16
  for (int i = 0; i < width; ++i) store(to + i * to_stride, r[i]);
}
/// to [columns, rows] = from^T; both multiples of width.
inline void transpose(int rows, int columns, const float* from, Index from_stride, float* to,
                      Index to_stride) {
  for (int j = 0; j < columns; j += width)
    for (int i = 0; i < rows; i += width)
      transpose_block(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
}

/// Denormal numbers make x86 hosts some thirty times slower. While an object of this class lives, the calling
/// thread reads and writes them as zero.
class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : kept_(_mm_getcsr()) {
    _mm_setcsr(kept_ | 0x8040u);
  }
  ~FlushDenormals() {
    _mm_setcsr(kept_);
  }
#else
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__SSE2__)
  unsigned kept_;
#endif
};

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
