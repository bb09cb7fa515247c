// SPDX-License-Identifier: Apache-2.0
#include "train/axis.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltaport::train {
namespace {

std::vector<std::string> labels(const std::vector<Tick>& ticks) {
  std::vector<std::string> texts;
  for (const Tick& tick : ticks) texts.push_back(tick.label);
  return texts;
}
using Labels = std::vector<std::string>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Ticks, StepsAreOneTwoFive) {
  EXPECT_EQ(labels(linear_ticks(0, 10, 5, false)), (Labels{"0", "2", "4", "6", "8", "10"}));
  EXPECT_EQ(labels(linear_ticks(1.2, 2.3, 5, false)), (Labels{"1.2", "1.4", "1.6", "1.8", "2.0", "2.2"}));
  EXPECT_EQ(labels(linear_ticks(0, 1, 10, false)).size(), 11u);
  EXPECT_EQ(labels(linear_ticks(-0.05, 0.05, 4, false)), (Labels{"-0.04", "-0.02", "0", "0.02", "0.04"}));
}

TEST(Ticks, LargeAndSmallNumbersAreShort) {
  EXPECT_EQ(labels(linear_ticks(0, 60000, 3, false)), (Labels{"0", "20k", "40k", "60k"}));
  EXPECT_EQ(labels(linear_ticks(0, 3e6, 3, false)), (Labels{"0", "1M", "2M", "3M"}));
  EXPECT_EQ(labels(linear_ticks(0, 6e-4, 3, false)), (Labels{"0", "0.0002", "0.0004", "0.0006"}));
}

TEST(Ticks, WholeNumbersHaveNoFractions) {
  EXPECT_EQ(labels(linear_ticks(0, 3, 10, true)), (Labels{"0", "1", "2", "3"}));
}

TEST(Ticks, Logarithmic) {
  EXPECT_EQ(labels(logarithmic_ticks(1, 100, 6)), (Labels{"1", "2", "5", "10", "20", "50", "100"}));
  EXPECT_EQ(labels(logarithmic_ticks(0.5, 2e4, 5)), (Labels{"1", "10", "100", "1000", "10k"}));
  EXPECT_LE(logarithmic_ticks(1e-30, 1e30, 6).size(), 8u);
}

AxisRange vertical() {
  return {100.0, 0.0, 5};
}

TEST(MakeAxis, CoversAllValuesUpToTicks) {
  const Axis axis = make_axis({1.3, nan, 4.7, infinity}, vertical());
  EXPECT_EQ(axis.scale, Scale::linear);
  EXPECT_LE(axis.low, 1.3);
  EXPECT_GE(axis.high, 4.7);
  EXPECT_DOUBLE_EQ(axis.ticks.front().value, axis.low);
  EXPECT_DOUBLE_EQ(axis.ticks.back().value, axis.high);
  EXPECT_DOUBLE_EQ(axis.pixel(axis.low), 100.0);
  EXPECT_DOUBLE_EQ(axis.pixel(axis.high), 0.0);
}

TEST(MakeAxis, BecomesLogarithmicOnlyWhenAskedAndUseful) {
  AxisRange range = vertical();
  EXPECT_EQ(make_axis({1.0, 1e6}, range).scale, Scale::linear);
  range.may_be_logarithmic = true;
  EXPECT_EQ(make_axis({1.0, 40.0}, range).scale, Scale::linear);
  EXPECT_EQ(make_axis({0.0, 1e6}, range).scale, Scale::linear);
  const Axis axis = make_axis({1.0, 1e6}, range);
  EXPECT_EQ(axis.scale, Scale::logarithmic);
  EXPECT_NEAR(axis.pixel(1e3), 50.0, 1e-9);
}

TEST(MakeAxis, AnyValuesGiveAUsableAxis) {
  for (const bool from_zero : {false, true})
    for (const auto& values : std::vector<std::vector<double>>{
             {}, {nan}, {0.0}, {3.0}, {3.0, 3.0}, {-2.0}, {1e300, -1e300}, {1e-300}, {1e15, 1e15 + 1}}) {
      AxisRange range = vertical();
      range.from_zero = from_zero;
      const Axis axis = make_axis(values, range);
      EXPECT_LT(axis.low, axis.high);
      EXPECT_FALSE(axis.ticks.empty());
      EXPECT_LE(axis.ticks.size(), 20u);
      for (const double value : values) EXPECT_TRUE(std::isfinite(axis.pixel(value)));
    }
}

}  // namespace
}  // namespace deltaport::train
