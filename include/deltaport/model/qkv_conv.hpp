// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/context.hpp"
#include "deltaport/core/runtime.hpp"
#include "deltaport/model/column_slice.hpp"

/// The way from the fused projection to the recurrence, in one pass: depthwise causal convolution of W taps
/// (1 to 4, no bias), SiLU, and for the query and key heads y = s / sqrt(sum s^2 + 1e-6). Zeros stand left of
/// every document. Everything is enqueued on the compute stream; no atomics, so results do not depend on the
/// thread count.
namespace deltaport {

/// Channels of the convolution, in this order: H query heads of K, H key heads of K, HV value heads of V.
struct QkvShape {
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;

  /// The heads of a GDN or GDN2 mixer. Throws ConfigError unless all are positive and HV is a multiple of H.
  static QkvShape of(const LinearMixerConfig& config);
  KOKKOS_INLINE_FUNCTION std::int64_t keys() const { return key_heads * key_dim; }        ///< H K
  KOKKOS_INLINE_FUNCTION std::int64_t values() const { return value_heads * value_dim; }  ///< HV V
  KOKKOS_INLINE_FUNCTION std::int64_t channels() const { return 2 * keys() + values(); }
};

template <class T>
struct QkvConvResult {
  Tensor<T> q;                 ///< [T, H, K], unit length
  Tensor<T> k;                 ///< [T, H, K], unit length
  Tensor<T> v;                 ///< [T, HV, V]
  Tensor<Accumulate<T>> rstd;  ///< [T, 2 H] 1 / length before normalising: query heads, then key heads
};

/// x: the channels of T tokens. weight [channels, 1, W], tap W - 1 on the token itself. positions [T]: each
/// token's index in its document. Throws ShapeError naming the argument.
template <class T>
QkvConvResult<T> qkv_conv_forward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                                  const Tensor<T>& weight, const Tensor<std::int32_t>& positions);

/// Writes dx (all T rows of the slice) and ADDS to dweight [channels, 1, W]. dq, dk [T, H, K] and dv [T, HV,
/// V] are the gradients of the forward's outputs; `rstd` is the forward's. The pre-activation is recomputed
/// from x.
template <class T>
void qkv_conv_backward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                       const Tensor<T>& weight, const Tensor<std::int32_t>& positions,
                       const Tensor<Accumulate<T>>& rstd, const Tensor<T>& dq, const Tensor<T>& dk,
                       const Tensor<T>& dv, const ColumnSlice<T>& dx, const Tensor<Accumulate<T>>& dweight);

/// One token of each of N sequences. x: the channels of N tokens. state [N, channels, W - 1] holds the tokens
/// before, oldest first (zeros at the start of a document), and is moved on in place. Results as for T = N
/// tokens.
template <class T>
QkvConvResult<T> qkv_conv_step(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                               const Tensor<T>& weight, const Tensor<T>& state);

/// The next tokens of M sequences, packed: x the channels of T tokens, state [M, channels, W - 1] as above,
/// moved on in place. Sequences may be empty.
template <class T>
QkvConvResult<T> qkv_conv_prefill(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                                  const Tensor<T>& weight, const Sequences& sequences,
                                  const Tensor<T>& state);

}  // namespace deltaport
