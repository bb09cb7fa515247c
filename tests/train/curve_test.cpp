// SPDX-License-Identifier: Apache-2.0
#include "train/curve.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltaport::train {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::vector<Point> line_of(std::size_t n) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < n; ++i)
    points.push_back({static_cast<double>(i), 2.0 * static_cast<double>(i) + 1.0});
  return points;
}

TEST(Smooth, KeepsStraightLinesAndEnds) {
  const auto points = line_of(50);
  const auto smoothed = smooth(points, 9);
  ASSERT_EQ(smoothed.size(), points.size());
  for (std::size_t i = 0; i < points.size(); ++i) EXPECT_NEAR(smoothed[i].y, points[i].y, 1e-9);
}

TEST(Smooth, TakesNoiseOut) {
  auto points = line_of(200);
  for (std::size_t i = 0; i < points.size(); ++i) points[i].y = i % 2 == 0 ? 1.0 : 3.0;
  const auto smoothed = smooth(points, 21);
  EXPECT_NEAR(smoothed[100].y, 2.0, 0.02);
}

TEST(Smooth, GapsStayGapsAndDoNotSpread) {
  auto points = line_of(20);
  points[10].y = nan;
  const auto smoothed = smooth(points, 5);
  for (std::size_t i = 0; i < points.size(); ++i) EXPECT_EQ(std::isnan(smoothed[i].y), i == 10);
}

TEST(Smooth, TinyInputs) {
  EXPECT_TRUE(smooth({}, 5).empty());
  EXPECT_EQ(smooth({{1.0, 4.0}}, 5)[0].y, 4.0);
  EXPECT_EQ(smoothing_window(0), 1u);
  EXPECT_EQ(smoothing_window(100000), 2001u);
}

TEST(Decimate, KeepsTheOutline) {
  auto points = line_of(100000);
  for (Point& p : points) p.y = std::sin(p.x * 0.01);
  points[54321].y = 50.0;
  points[12345].y = -50.0;
  points[777].y = nan;
  const auto fewer = decimate(points, 500);
  EXPECT_LE(fewer.size(), 2510u);
  double low = 0, high = 0;
  int gaps = 0;
  for (std::size_t i = 0; i < fewer.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(fewer[i - 1].x, fewer[i].x);
    }
    if (std::isnan(fewer[i].y)) {
      ++gaps;
      continue;
    }
    low = std::min(low, fewer[i].y);
    high = std::max(high, fewer[i].y);
  }
  EXPECT_EQ(low, -50.0);
  EXPECT_EQ(high, 50.0);
  EXPECT_EQ(gaps, 1);
  EXPECT_EQ(fewer.front().x, points.front().x);
  EXPECT_EQ(fewer.back().x, points.back().x);
}

TEST(Decimate, LeavesFewPointsAlone) {
  EXPECT_EQ(decimate(line_of(100), 100).size(), 100u);
}

}  // namespace
}  // namespace deltaport::train
