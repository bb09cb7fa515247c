// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace deltaport {
namespace {

TEST(FastExp, stays_within_two_units_in_the_last_place) {
  double worst = 0.0;
  for (std::int64_t bits = 0; bits < 0xffffffff; bits += 40009) {
    const float x = Kokkos::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(x > -86.9f && x < 88.7f)) continue;
    const double want = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(want);
    const double unit = std::nextafter(rounded, INFINITY) - rounded;
    worst = std::max(worst, std::abs(fast_exp(x) - want) / unit);
  }
  EXPECT_LE(worst, 2.0);
}

TEST(FastExp, treats_the_ends_as_documented) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-infinity), 0.0f);
  EXPECT_EQ(fast_exp(-88.0f), 0.0f);
  EXPECT_EQ(fast_exp(-1e30f), 0.0f);
  EXPECT_EQ(fast_exp(89.0f), infinity);
  EXPECT_EQ(fast_exp(infinity), infinity);
  EXPECT_TRUE(std::isfinite(fast_exp(88.72f)));
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST(Sigmoid, is_accurate_on_both_sides_and_saturates) {
  for (double x = -80.0; x < 80.0; x += 0.37) {
    const double want = 1.0 / (1.0 + std::exp(-x));
    EXPECT_NEAR(sigmoid(x), want, 1e-15 * want) << x;
    const auto xf = static_cast<float>(x);
    const double wantf = 1.0 / (1.0 + std::exp(-static_cast<double>(xf)));
    EXPECT_NEAR(sigmoid(xf), wantf, 4e-7 * wantf) << x;
  }
  EXPECT_EQ(sigmoid(-200.0f), 0.0f);
  EXPECT_EQ(sigmoid(200.0f), 1.0f);
  EXPECT_EQ(sigmoid(-2000.0), 0.0);
}

TEST(Silu, has_the_derivative_it_claims) {
  for (double x = -20.0; x < 20.0; x += 0.31) {
    const double h = 1e-4;
    const double numeric = (8 * (silu(x + h) - silu(x - h)) - (silu(x + 2 * h) - silu(x - 2 * h))) / (12 * h);
    EXPECT_NEAR(silu_derivative(x), numeric, 1e-10) << x;
  }
}

}  // namespace
}  // namespace deltaport
