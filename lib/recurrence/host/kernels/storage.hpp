// SPDX-License-Identifier: Apache-2.0
// Between tensors in memory, of any storage type, and float vectors.
#pragma once

#include "recurrence/host/kernels/vector.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

struct Bfloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};

DELTAPORT_HOST_INLINE Vector load(const Bfloat16* x) {
  const Halves bits = *reinterpret_cast<const LooseHalves*>(x);
  return reinterpret_cast<Vector>(__builtin_convertvector(bits, Words) << 16);
}
/// To nearest, ties to even; NaN stays NaN.
DELTAPORT_HOST_INLINE Halves halves_of(Vector v, Bfloat16) {
  const Words bits = reinterpret_cast<Words>(v);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Words quiet = bits | 0x400000u;
  return __builtin_convertvector((v == v ? rounded : quiet) >> 16, Halves);
}

#if defined(__AVX512F__)
DELTAPORT_HOST_INLINE Vector load(const Float16* x) {
  return reinterpret_cast<Vector>(
      _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
}
DELTAPORT_HOST_INLINE Halves halves_of(Vector v, Float16) {
  return reinterpret_cast<Halves>(
      _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
DELTAPORT_HOST_INLINE Vector load(const Float16* x) {
  return reinterpret_cast<Vector>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}
DELTAPORT_HOST_INLINE Halves halves_of(Vector v, Float16) {
  return reinterpret_cast<Halves>(_mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
}
#else
/// By moving the exponent; a half's denormals are normal floats once multiplied by 2^112.
DELTAPORT_HOST_INLINE Vector load(const Float16* x) {
  const Words bits = __builtin_convertvector(*reinterpret_cast<const LooseHalves*>(x), Words);
  const Words rest = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
  const Vector small = __builtin_convertvector(reinterpret_cast<Integers>(rest), Vector) * 0x1p-24f;
  const Words normal = (rest << 13) + ((127u - 15u) << 23);
  const Words special = (rest << 13) | 0x7f800000u;
  const Words size = rest < 0x400u ? reinterpret_cast<Words>(small) : rest >= 0x7c00u ? special : normal;
  return reinterpret_cast<Vector>(size | sign);
}
DELTAPORT_HOST_INLINE Halves halves_of(Vector v, Float16) {
  const Words bits = reinterpret_cast<Words>(v);
  const Words size = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  const Words normal = (size - ((127u - 15u) << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  // Adding 0.5 lets the addition round a denormal half to its last bit.
  const Words small = reinterpret_cast<Words>(reinterpret_cast<Vector>(size) + 0.5f) - 0x3f000000u;
  Words half = size < 0x38800000u ? small : normal;
  half = size >= 0x477ff000u ? Words{} + 0x7c00u : half;
  half = size > 0x7f800000u ? Words{} + 0x7e00u : half;
  return __builtin_convertvector(half | sign, Halves);
}
#endif

template <class T>
DELTAPORT_HOST_INLINE void store(T* x, Vector v) {
  *reinterpret_cast<LooseHalves*>(x) = halves_of(v, T{});
}

/// Past the caches: outputs are not read again here, and a plain store would first fetch the line. x is aligned
/// to what is written.
DELTAPORT_HOST_INLINE void stream(float* x, Vector v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(x, reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  _mm256_stream_ps(x, reinterpret_cast<__m256>(v));
#elif defined(__SSE2__)
  _mm_stream_ps(x, reinterpret_cast<__m128>(v));
#else
  store(x, v);
#endif
}
template <class T>
DELTAPORT_HOST_INLINE void stream(T* x, Vector v) {
  const Halves bits = halves_of(v, T{});
#if defined(__AVX512F__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(x), reinterpret_cast<__m256i>(bits));
#elif defined(__AVX2__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(x), reinterpret_cast<__m128i>(bits));
#else
  *reinterpret_cast<LooseHalves*>(x) = bits;
#endif
}
DELTAPORT_HOST_INLINE void finish_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/// The next `left` elements, zero behind them; a full vector when there are as many.
template <class T>
DELTAPORT_HOST_INLINE Vector load_part(const T* x, int left) {
  if (left >= width) return load(x);
  T part[width] = {};
  for (int i = 0; i < left; ++i) part[i] = x[i];
  return load(part);
}
template <class T>
DELTAPORT_HOST_INLINE void store_part(T* x, Vector v, int left) {
  if (left >= width) return store(x, v);
  T part[width];
  store(part, v);
  for (int i = 0; i < left; ++i) x[i] = part[i];
}

/// One head's rows of an input tensor.
template <class T>
struct Input {
  const T* data;
  Index stride;
  int columns;
  DELTAPORT_HOST_INLINE Vector at(int row, int column) const {
    return load_part(data + row * stride + column, columns - column);
  }
};

/// One head's rows of an output tensor: of T, or of float when `wide`.
template <class T>
struct Output {
  void* data;
  Index stride;
  int columns;
  bool wide, streamed;

  Output(void* tensor, Index row, int heads, int head, int channels, bool is_wide = false)
      : stride(Index{heads} * channels), columns(channels), wide(is_wide || sizeof(T) == sizeof(float)) {
    const Index bytes = wide ? sizeof(float) : sizeof(T);
    data = static_cast<char*>(tensor) + (row * stride + Index{head} * channels) * bytes;
    // Whole cache lines only, or neighbours would fetch them again.
    streamed = reinterpret_cast<unsigned long long>(data) % 64 == 0 && columns * bytes % 64 == 0;
  }
  DELTAPORT_HOST_INLINE void put(int row, int column, Vector v) const {
    if (wide)
      put_as(static_cast<float*>(data) + row * stride + column, column, v);
    else
      put_as(static_cast<T*>(data) + row * stride + column, column, v);
  }

 private:
  template <class X>
  DELTAPORT_HOST_INLINE void put_as(X* x, int column, Vector v) const {
    if (streamed)
      stream(x, v);
    else
      store_part(x, v, columns - column);
  }
};

/// to [rows, padded] = factor-free copy of an input's first n rows, zero behind channels and tokens.
template <class T>
inline void copy_rows(const Input<T>& from, int n, int rows, int padded, float* to) {
  for (int i = 0; i < rows; ++i)
    for (int a = 0; a < padded; a += width) store(to + i * padded + a, i < n ? from.at(i, a) : Vector{});
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
