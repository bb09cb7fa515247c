// SPDX-License-Identifier: Apache-2.0
#include "deltaport/optim/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

ScheduleConfig schedule(ScheduleName name, std::int64_t warmup, double ratio, std::int64_t decay = 0) {
  return ScheduleConfig{name, warmup, ratio, decay};
}

TEST(Schedule, WarmupStartsAboveZeroAndReachesThePeak) {
  for (const ScheduleName name : {ScheduleName::constant, ScheduleName::cosine, ScheduleName::wsd}) {
    const ScheduleConfig s = schedule(name, 4, 0.1, 5);
    EXPECT_DOUBLE_EQ(learning_rate(s, 2.0, 20, 0), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate(s, 2.0, 20, 1), 1.0);
    EXPECT_EQ(learning_rate(s, 2.0, 20, 3), 2.0);
  }
}

TEST(Schedule, ConstantStaysAtThePeak) {
  EXPECT_EQ(learning_rate(schedule(ScheduleName::constant, 0, 0.1), 3.0, 10, 0), 3.0);
  EXPECT_EQ(learning_rate(schedule(ScheduleName::constant, 2, 0.1), 3.0, 10, 9), 3.0);
}

TEST(Schedule, CosineFollowsItsFormulaAndEndsAtTheRatio) {
  const ScheduleConfig s = schedule(ScheduleName::cosine, 10, 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(s, 1.0, 110, 59), 0.25 + 0.75 * 0.5);  // half-way
  EXPECT_DOUBLE_EQ(learning_rate(s, 1.0, 110, 34), 0.25 + 0.75 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_EQ(learning_rate(s, 1.0, 110, 109), 0.25);
  EXPECT_EQ(learning_rate(s, 1.0, 110, 5000), 0.25);
  double previous = 2.0;
  for (int step = 10; step < 110; ++step) {
    const double lr = learning_rate(s, 1.0, 110, step);
    EXPECT_LT(lr, previous);
    previous = lr;
  }
}

TEST(Schedule, WsdHoldsThenFallsLinearly) {
  const ScheduleConfig s = schedule(ScheduleName::wsd, 2, 0.0, 4);
  EXPECT_EQ(learning_rate(s, 1.0, 20, 15), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(s, 1.0, 20, 16), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(s, 1.0, 20, 18), 0.25);
  EXPECT_EQ(learning_rate(s, 1.0, 20, 19), 0.0);
  EXPECT_EQ(learning_rate(schedule(ScheduleName::wsd, 2, 0.0, 0), 1.0, 20, 19), 1.0);
  // A decay longer than what is left starts right after the warm-up.
  EXPECT_DOUBLE_EQ(learning_rate(schedule(ScheduleName::wsd, 2, 0.0, 100), 1.0, 6, 2), 0.75);
}

TEST(Schedule, EdgesOfLength) {
  const ScheduleConfig longer = schedule(ScheduleName::cosine, 10, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(longer, 1.0, 5, 4), 0.5);
  EXPECT_EQ(learning_rate(longer, 1.0, 10, 9), 1.0);
  EXPECT_EQ(learning_rate(schedule(ScheduleName::cosine, 0, 0.1), 1.0, 1, 0), 0.1);
}

TEST(Schedule, RefusesBadNumbers) {
  EXPECT_THROW(learning_rate(schedule(ScheduleName::cosine, 0, 0.1), 1.0, 10, -1), ConfigError);
  EXPECT_THROW(learning_rate(schedule(ScheduleName::cosine, -1, 0.1), 1.0, 10, 0), ConfigError);
  EXPECT_THROW(learning_rate(schedule(ScheduleName::cosine, 0, 1.5), 1.0, 10, 0), ConfigError);
  EXPECT_THROW(learning_rate(schedule(ScheduleName::cosine, 0, NAN), 1.0, 10, 0), ConfigError);
  EXPECT_THROW(learning_rate(schedule(ScheduleName::cosine, 0, 0.1), INFINITY, 10, 0), ConfigError);
}

}  // namespace
}  // namespace deltaport
