// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/model/qkv_conv.hpp"

namespace deltaport::qkv {

inline constexpr int max_taps = 4;
/// Inside the square root of the length of a query or key.
inline constexpr double length_eps = 1e-6;

/// One head of the convolution's channels: 0..H-1 query, H..2H-1 key, then the HV value heads.
struct Segment {
  std::int64_t channel;  ///< its first channel
  std::int64_t width;    ///< K or V
  bool unit_length;      ///< query and key heads are normalised
  std::int64_t head;     ///< index inside its own tensor
  int part;              ///< 0 q, 1 k, 2 v
};

KOKKOS_FORCEINLINE_FUNCTION std::int64_t segment_count(const QkvShape& shape) {
  return 2 * shape.key_heads + shape.value_heads;
}

KOKKOS_FORCEINLINE_FUNCTION Segment segment(const QkvShape& shape, std::int64_t index) {
  const std::int64_t h = shape.key_heads;
  if (index < h) return {index * shape.key_dim, shape.key_dim, true, index, 0};
  if (index < 2 * h) return {index * shape.key_dim, shape.key_dim, true, index - h, 1};
  const std::int64_t j = index - 2 * h;
  return {2 * h * shape.key_dim + j * shape.value_dim, shape.value_dim, false, j, 2};
}

/// Taps by distance: row j (0..3) multiplies the token j places back, zero beyond W; row 4 is all zeros and
/// stands for tokens before the document. So every token takes the same four products, whatever W and
/// wherever it stands.
template <class T>
struct TapTable {
  const T* rows;  // [max_taps + 1, channels]
  std::int64_t channels;
  KOKKOS_FORCEINLINE_FUNCTION const T* tap(int distance, std::int64_t channel) const {
    return rows + distance * channels + channel;
  }
  KOKKOS_FORCEINLINE_FUNCTION const T* zeros(std::int64_t channel) const {
    return rows + max_taps * channels + channel;
  }
};

/// The inputs of one token's convolution for one segment: four row pointers, nearest first.
template <class T>
struct Window {
  const T* back[max_taps];
};

/// One channel's sum of four products of taps and inputs (or gradients).
template <class T, class X>
KOKKOS_FORCEINLINE_FUNCTION Accumulate<T> four_taps(T w0, T w1, T w2, T w3, X x0, X x1, X x2, X x3) {
  return ((widen(w0) * widen(x0) + widen(w1) * widen(x1)) + widen(w2) * widen(x2)) + widen(w3) * widen(x3);
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION Window<T> window(const T* x, std::int64_t stride, const TapTable<T>& taps,
                                             std::int64_t t, std::int64_t position, std::int64_t channel) {
  Window<T> result;
  for (int j = 0; j < max_taps; ++j)
    result.back[j] = position >= j ? x + (t - j) * stride + channel : taps.zeros(channel);
  return result;
}

/// Builds the table from weight [channels, 1, W] (a new tensor [max_taps + 1, channels]).
template <class T>
Tensor<T> make_tap_table(Runtime& runtime, const QkvShape& shape, const Tensor<T>& weight);

/// Throws ShapeError unless x and weight fit the shape.
template <class T>
void validate(const char* where, const QkvShape& shape, const ColumnSlice<T>& x, const Tensor<T>& weight);

}  // namespace deltaport::qkv
