// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/convert.hpp"

#include <cstring>
#include <type_traits>
#include <utility>

namespace deltaport {

namespace {

template <class X>
constexpr bool is_float = std::is_floating_point_v<X> || is_half<X>;

// Halves convert through float; the C++ types among themselves.
template <class From, class To>
bool convert_one(From from, To& to) {
  if constexpr (std::is_same_v<From, To>) {
    to = from;
  } else if constexpr (is_half<From> || is_half<To>) {
    to = static_cast<To>(static_cast<float>(from));
  } else if constexpr (is_float<To>) {
    to = static_cast<To>(from);
  } else {
    if (!std::in_range<To>(from)) return false;
    to = static_cast<To>(from);
  }
  return true;
}

template <class From, class To>
std::int64_t convert_all(const std::byte* raw, std::int64_t n, To* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, raw + static_cast<std::size_t>(i) * sizeof(From), sizeof(From));
    if (!convert_one(value, to[i])) return i;
  }
  return -1;
}

}  // namespace

template <class T>
FileConversion<T> file_conversion(FileDtype dtype) {
  if constexpr (is_float<T>) {
    switch (dtype) {
      case FileDtype::f16:
        return convert_all<float16, T>;
      case FileDtype::bf16:
        return convert_all<bfloat16, T>;
      case FileDtype::f32:
        return convert_all<float, T>;
      case FileDtype::f64:
        return convert_all<double, T>;
      default:
        return nullptr;
    }
  } else {
    switch (dtype) {
      case FileDtype::u8:
        return convert_all<std::uint8_t, T>;
      case FileDtype::i8:
        return convert_all<std::int8_t, T>;
      case FileDtype::i16:
        return convert_all<std::int16_t, T>;
      case FileDtype::u16:
        return convert_all<std::uint16_t, T>;
      case FileDtype::i32:
        return convert_all<std::int32_t, T>;
      case FileDtype::u32:
        return convert_all<std::uint32_t, T>;
      case FileDtype::i64:
        return convert_all<std::int64_t, T>;
      case FileDtype::u64:
        return convert_all<std::uint64_t, T>;
      default:
        return nullptr;
    }
  }
}

template FileConversion<float> file_conversion<float>(FileDtype);
template FileConversion<double> file_conversion<double>(FileDtype);
template FileConversion<bfloat16> file_conversion<bfloat16>(FileDtype);
template FileConversion<float16> file_conversion<float16>(FileDtype);
template FileConversion<std::int32_t> file_conversion<std::int32_t>(FileDtype);
template FileConversion<std::int64_t> file_conversion<std::int64_t>(FileDtype);

}  // namespace deltaport
