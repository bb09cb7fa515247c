// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace deltaport {

/// Two-byte storage of the upper half of a float32; arithmetic is done in float32. Kokkos' own bhalf_t is
/// four bytes on host builds and so cannot describe files or device buffers. Conversion rounds to nearest
/// even and keeps NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  KOKKOS_INLINE_FUNCTION explicit bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const auto word = Kokkos::bit_cast<std::uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<std::uint16_t>((word >> 16) | 0x40u)
                  : static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
#endif
  }
  KOKKOS_INLINE_FUNCTION explicit operator float() const {
    return Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};
static_assert(sizeof(bfloat16) == 2);

/// IEEE half precision as two-byte storage; arithmetic is done in float32. Conversion rounds to nearest even,
/// keeps subnormals, infinity and NaN, and turns what rounds beyond 65504 into infinity.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  KOKKOS_INLINE_FUNCTION explicit float16(float value) {
    const auto word = Kokkos::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {  // NaN, quiet, with the upper bits of its payload
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {  // 65520 and more
      half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5, whose last place is 2^-24, rounds
      half = Kokkos::bit_cast<std::uint32_t>(Kokkos::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    bits = static_cast<std::uint16_t>(half | ((word >> 16) & 0x8000u));
  }
  KOKKOS_INLINE_FUNCTION explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u)
      return Kokkos::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x400u) return Kokkos::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float value = static_cast<float>(magnitude) * 0x1p-24f;  // zero and subnormals, exact
    return sign != 0 ? -value : value;
  }
};
static_assert(sizeof(float16) == 2);

/// True for the two-byte storage types, whose arithmetic is done in float32.
template <class T>
inline constexpr bool is_half = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

enum class Dtype { f32, f64, bf16, f16, i32, i64, u8 };

/// Size of one element in bytes.
constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::bf16:
    case Dtype::f16:
      return 2;
    default:
      return 1;
  }
}

/// Name as users write it: float32, float64, bfloat16, float16, int32, int64, uint8.
constexpr std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "float32";
    case Dtype::f64:
      return "float64";
    case Dtype::bf16:
      return "bfloat16";
    case Dtype::f16:
      return "float16";
    case Dtype::i32:
      return "int32";
    case Dtype::i64:
      return "int64";
    default:
      return "uint8";
  }
}

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::f32;
  using accumulate = float;
};
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::f64;
  using accumulate = double;
};
template <>
struct DtypeOf<bfloat16> {
  static constexpr Dtype value = Dtype::bf16;
  using accumulate = float;
};
template <>
struct DtypeOf<float16> {
  static constexpr Dtype value = Dtype::f16;
  using accumulate = float;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::i32;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype value = Dtype::i64;
};
template <>
struct DtypeOf<std::uint8_t> {
  static constexpr Dtype value = Dtype::u8;
};

template <class T>
inline constexpr Dtype dtype_of = DtypeOf<T>::value;

/// Type in which sums, gates, norms and recurrent states of T are kept: float for float, bfloat16 and
/// float16, double for double.
template <class T>
using Accumulate = typename DtypeOf<T>::accumulate;

/// A value in the type that arithmetic is done in; exact.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION Accumulate<T> widen(T x) {
  return static_cast<Accumulate<T>>(x);
}

}  // namespace deltaport
