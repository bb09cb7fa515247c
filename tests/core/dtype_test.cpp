// SPDX-License-Identifier: Apache-2.0
// Both two-byte types: every pattern, and every rounding between neighbours.
#include "deltaport/core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

using namespace deltaport;

template <class Half>
Half from_bits(std::uint32_t bits) {
  Half x;
  x.bits = static_cast<std::uint16_t>(bits);
  return x;
}

/// The value of a pattern by the definition of the format.
template <class Half>
double value_of(std::uint32_t bits) {
  const int fraction_bits = std::is_same_v<Half, float16> ? 10 : 7;
  const int bias = std::is_same_v<Half, float16> ? 15 : 127;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> fraction_bits);
  const double fraction = static_cast<double>(bits & ((1u << fraction_bits) - 1));
  const double magnitude = exponent == 0
                               ? std::ldexp(fraction, 1 - bias - fraction_bits)
                               : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return bits & 0x8000u ? -magnitude : magnitude;
}

template <class Half>
class HalfTypes : public ::testing::Test {
 public:
  static constexpr std::uint32_t infinity = std::is_same_v<Half, float16> ? 0x7c00 : 0x7f80;
};
using Halves = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(HalfTypes, Halves);

TYPED_TEST(HalfTypes, EveryFinitePatternConvertsBothWays) {
  for (std::uint32_t sign : {0u, 0x8000u})
    for (std::uint32_t bits = 0; bits < this->infinity; ++bits) {
      const auto value = static_cast<float>(from_bits<TypeParam>(sign | bits));
      ASSERT_EQ(value, value_of<TypeParam>(sign | bits));
      ASSERT_EQ(std::signbit(value), sign != 0);
      ASSERT_EQ(TypeParam(value).bits, sign | bits);
    }
}

TYPED_TEST(HalfTypes, RoundsToNearestEven) {
  for (std::uint32_t sign : {0u, 0x8000u})
    for (std::uint32_t bits = 0; bits + 1 < this->infinity; ++bits) {
      const std::uint32_t low = sign | bits, high = low + 1, even = bits % 2 == 0 ? low : high;
      const auto middle =
          static_cast<float>((value_of<TypeParam>(low) + value_of<TypeParam>(high)) / 2);  // exact
      ASSERT_EQ(TypeParam(middle).bits, even);
      ASSERT_EQ(TypeParam(std::nextafter(middle, static_cast<float>(value_of<TypeParam>(low)))).bits, low);
      ASSERT_EQ(TypeParam(std::nextafter(middle, static_cast<float>(value_of<TypeParam>(high)))).bits, high);
    }
}

TYPED_TEST(HalfTypes, InfinityAndNan) {
  const float endless = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam(endless).bits, this->infinity);
  EXPECT_EQ(TypeParam(-endless).bits, this->infinity | 0x8000u);
  EXPECT_EQ(static_cast<float>(from_bits<TypeParam>(this->infinity)), endless);
  EXPECT_EQ(TypeParam(std::numeric_limits<float>::max()).bits, this->infinity);
  for (std::uint32_t bits = this->infinity + 1; bits < 0x8000u; ++bits) {
    const auto value = static_cast<float>(from_bits<TypeParam>(bits));
    ASSERT_TRUE(std::isnan(value));
    ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value))));
  }
  // A NaN whose payload lies below what the type keeps.
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(Kokkos::bit_cast<float>(0x7f800001u)))));
}

TEST(Float16, EndsAt65504) {
  EXPECT_EQ(static_cast<float>(float16(65519.996f)), 65504.0f);
  EXPECT_EQ(float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(float16(-65520.0f).bits, 0xfc00);
  EXPECT_EQ(float16(0x1p-25f).bits, 0);  // half of the smallest: to even
  EXPECT_EQ(float16(0x1.8p-25f).bits, 1);
  EXPECT_EQ(float16(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(Dtypes, Names) {
  EXPECT_EQ(name_of(dtype_of<float16>), "float16");
  EXPECT_EQ(name_of(dtype_of<bfloat16>), "bfloat16");
  EXPECT_EQ(size_of(dtype_of<float16>), 2u);
}

}  // namespace
