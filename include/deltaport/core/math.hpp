// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace deltaport {

/// exp(x) for loops that host compilers should vectorise: no branches, no calls. Relative error below 1.5
/// units in the last place; results under 2^-125 (x < -86.99) are 0, overflow gives infinity, NaN stays NaN.
/// Range reduction by ln 2 in two parts, then a polynomial on [-ln 2 / 2, ln 2 / 2]. Devices use their own
/// exp.
KOKKOS_INLINE_FUNCTION float fast_exp(float x) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__) || defined(__SYCL_DEVICE_ONLY__)
  return Kokkos::exp(x);
#else
  // |x| is limited to 89 through its bits: selections between floats would become branches. NaN passes
  // through.
  const auto word = Kokkos::bit_cast<std::int32_t>(x);
  const std::int32_t magnitude = word & 0x7fffffff;
  const std::int32_t limited = magnitude < 0x42b20000 ? magnitude : 0x42b20000;
  const std::int32_t not_a_number = ((0x7f800000 - magnitude) >> 31) & 0x7fc00000;
  const float clamped = Kokkos::bit_cast<float>(limited | not_a_number | (word ^ magnitude));
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
  float p =
      1.39264005e-3f;  // interpolates (exp(r) - 1 - r) / r^2 in Chebyshev points: error 1.0e-8 of exp(r)
  p = p * r + 8.36335268e-3f;
  p = p * r + 4.16665533e-2f;
  p = p * r + 1.66665759e-1f;
  p = p * r + 0.5f;
  p = (p * r) * r + r;
  // 2^(n-1) keeps the scale finite up to n = 128; its exponent field is 0, so the scale 0, from n = -126
  // down.
  const std::int32_t field = Kokkos::bit_cast<std::int32_t>(shifted) - 0x4b400000 + 126;
  const float scale = Kokkos::bit_cast<float>(static_cast<std::uint32_t>(field > 0 ? field : 0) << 23);
  return (p * scale + scale) * 2.0f;
#endif
}

/// In double there is no shortcut: gradient checks and oracles want the library's accuracy.
KOKKOS_INLINE_FUNCTION double fast_exp(double x) {
  return Kokkos::exp(x);
}

/// 1 / x for x >= 1; in float32 within two units in the last place on devices, where a rounded division takes ten
/// instructions.
template <class R>
KOKKOS_INLINE_FUNCTION R fast_reciprocal(R x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(R) == sizeof(float)) return __fdividef(1.0f, x);
#endif
  return R(1) / x;
}

/// 1 / sqrt(x) for x > 0; in float32 within two units in the last place on CUDA devices.
template <class R>
KOKKOS_INLINE_FUNCTION R inverse_sqrt(R x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(R) == sizeof(float)) return rsqrtf(x);
#endif
  return R(1) / Kokkos::sqrt(x);
}

/// 1 / (1 + exp(-x)); 0 where exp(-x) overflows. Free of branches, so that loops vectorise. In float32 on CUDA devices the
/// exponential is the hardware's of 2, with a relative error of about (1 + |x|) 2^-23.
template <class R>
KOKKOS_INLINE_FUNCTION R sigmoid(R x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(R) == sizeof(float)) return __fdividef(1.0f, 1.0f + __expf(-x));
#endif
  return fast_reciprocal(R(1) + fast_exp(-x));
}

/// x sigmoid(x)
template <class R>
KOKKOS_INLINE_FUNCTION R silu(R x) {
  return x * sigmoid(x);
}

/// d silu(x) / dx
template <class R>
KOKKOS_INLINE_FUNCTION R silu_derivative(R x) {
  const R s = sigmoid(x);
  return s * (R(1) + x * (R(1) - s));
}

/// log(1 + e) for e in [0, 1], for loops that host compilers should vectorise: with s = e / (2 + e) <= 1/3 it
/// is 2 atanh(s) = 2 (s + s^3/3 + s^5/5 + ...), cut off below the last place. Small e keep their relative
/// accuracy.
KOKKOS_INLINE_FUNCTION float log1p_unit(float e) {
  const float s = e / (2.0f + e);
  const float z = s * s;
  float p = 1.0f / 13.0f;
  p = p * z + 1.0f / 11.0f;
  p = p * z + 1.0f / 9.0f;
  p = p * z + 1.0f / 7.0f;
  p = p * z + 1.0f / 5.0f;
  p = p * z + 1.0f / 3.0f;
  return 2.0f * (s + s * (z * p));
}
KOKKOS_INLINE_FUNCTION double log1p_unit(double e) {
  return Kokkos::log1p(e);
}

/// log(1 + exp(x)), without overflow and without losing small results.
template <class R>
KOKKOS_INLINE_FUNCTION R softplus(R x) {
  const R magnitude = Kokkos::abs(x);
  return R(0.5) * (x + magnitude) + log1p_unit(fast_exp(-magnitude));
}

}  // namespace deltaport
