// SPDX-License-Identifier: Apache-2.0
#include "deltaport/offload/schedule.hpp"

#include <gtest/gtest.h>

#include "deltaport/core/error.hpp"

namespace deltaport::offload {
namespace {

GroupShape group(std::vector<std::size_t> bytes = {100}) {
  return {"scope", std::move(bytes)};
}

/// Which of `count` equal groups move.
std::vector<bool> pass(Schedule& schedule, int count) {
  std::vector<bool> moves;
  for (int i = 0; i < count; ++i) moves.push_back(schedule.next(group()).moves);
  schedule.end_forward();
  return moves;
}

TEST(Schedule, WarmUpMovesAllAndThePlanKeepsTheLast) {
  Schedule schedule({.fraction = 1.0, .slots = 1});
  EXPECT_EQ(pass(schedule, 4), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(pass(schedule, 4), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(pass(schedule, 4), (std::vector<bool>{true, true, true, false}));
}

TEST(Schedule, AsManyStayAsThereAreSlots) {
  Schedule schedule({.fraction = 1.0, .slots = 3});
  pass(schedule, 5);
  EXPECT_EQ(pass(schedule, 5), (std::vector<bool>{true, true, false, false, false}));
  Schedule few({.fraction = 1.0, .slots = 3});
  pass(few, 2);
  EXPECT_EQ(pass(few, 2), (std::vector<bool>{false, false}));
}

TEST(Schedule, KeepLastSaysHowManyInstead) {
  Schedule schedule({.fraction = 1.0, .keep_last = 3, .slots = 1});
  pass(schedule, 5);
  EXPECT_EQ(pass(schedule, 5), (std::vector<bool>{true, true, false, false, false}));
  Schedule fewer({.fraction = 1.0, .keep_last = 1, .slots = 3});
  pass(fewer, 5);
  EXPECT_EQ(pass(fewer, 5), (std::vector<bool>{true, true, true, true, false}));
}

TEST(Schedule, FractionsAreCountedExactly) {
  // Binary arithmetic would move one group more in each of these.
  for (const int n : {5, 10, 15, 20, 25, 30, 35}) EXPECT_EQ(moved_groups(n, 0.8), n * 4 / 5);
  for (const int n : {10, 20, 30}) EXPECT_EQ(moved_groups(n, 0.9), n * 9 / 10);
  EXPECT_EQ(moved_groups(3, 0.5), 2);
  EXPECT_EQ(moved_groups(7, 0.0), 0);
  EXPECT_EQ(moved_groups(7, 1.0), 7);
  EXPECT_EQ(moved_groups(3, 1e-9), 1);
}

TEST(Schedule, TheLatestOfTheEligibleStay) {
  Schedule schedule({.fraction = 0.5, .slots = 1});
  pass(schedule, 7);
  EXPECT_EQ(pass(schedule, 7), (std::vector<bool>{true, true, true, false, false, false, false}));
}

TEST(Schedule, NoFractionMovesNothingFromTheStart) {
  Schedule schedule({.fraction = 0.0, .slots = 1});
  EXPECT_EQ(pass(schedule, 3), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(pass(schedule, 3), (std::vector<bool>{false, false, false}));
}

TEST(Schedule, OtherShapesAreLearntAnew) {
  Schedule schedule({.fraction = 0.5, .slots = 1});
  pass(schedule, 5);
  EXPECT_EQ(pass(schedule, 5), (std::vector<bool>{true, true, false, false, false}));
  EXPECT_TRUE(schedule.follows_plan());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(schedule.next(group({50})).moves);
  EXPECT_FALSE(schedule.follows_plan());
  EXPECT_TRUE(schedule.end_forward());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(schedule.next(group({50})).moves, i < 2);
  EXPECT_FALSE(schedule.end_forward());
}

TEST(Schedule, MoreAndFewerGroupsAreLearntAnew) {
  Schedule schedule({.fraction = 1.0, .slots = 1});
  pass(schedule, 3);
  EXPECT_EQ(pass(schedule, 5), (std::vector<bool>{true, true, false, true, true}));
  EXPECT_EQ(pass(schedule, 5), (std::vector<bool>{true, true, true, true, false}));
  EXPECT_EQ(pass(schedule, 2), (std::vector<bool>{true, true}));
  EXPECT_EQ(pass(schedule, 2), (std::vector<bool>{true, false}));
}

TEST(Schedule, APassWithoutBackwardTeachesNothing) {
  Schedule schedule({.fraction = 1.0, .slots = 1});
  schedule.next(group());
  schedule.forget();
  EXPECT_TRUE(schedule.plan().empty());
  EXPECT_EQ(schedule.position(), 0U);
}

TEST(Schedule, WhatOthersKeepIsNotMovedAndDoesNotCount) {
  Schedule schedule({.fraction = 0.5, .slots = 1});
  for (int i = 0; i < 5; ++i) schedule.next(group({10, 20}));
  schedule.is_shared(0, 0);
  schedule.is_shared(0, 1);  // nothing of it is left
  schedule.is_shared(1, 1);
  EXPECT_TRUE(schedule.end_forward());
  EXPECT_FALSE(schedule.next(group({10, 20})).moves);
  const GroupDecision second = schedule.next(group({10, 20}));
  EXPECT_TRUE(second.moves);
  EXPECT_EQ(second.shared, (std::vector<bool>{false, true}));
  EXPECT_TRUE(schedule.next(group({10, 20})).moves);  // half of three
  EXPECT_FALSE(schedule.next(group({10, 20})).moves);
  EXPECT_EQ(schedule.plan()[1].moved_bytes(), 10U);
  EXPECT_EQ(schedule.plan()[2].moved_bytes(), 30U);
  EXPECT_EQ(schedule.plan()[3].moved_bytes(), 0U);
}

TEST(Schedule, TheFractionThatFitsFollowsTheRule) {
  // Seven of eight are eligible; host memory is whole lines of 256 bytes.
  Schedule schedule({.fraction = 1.0, .slots = 1});
  for (const std::size_t bytes : {1000, 200, 3000, 300, 5000, 100, 900, 700}) schedule.next(group({bytes}));
  schedule.end_forward();
  EXPECT_EQ(schedule.host_bytes(), 1024U + 256U + 3072U + 512U + 5120U + 256U + 1024U);
  EXPECT_EQ(schedule.host_bytes(0.4), 1024U + 256U + 3072U);  // 2.8 groups: three
  for (std::size_t limit = 1024; limit <= 11264; ++limit) {
    const double fraction = schedule.fraction_within(limit);
    ASSERT_GT(fraction, 0.0) << limit;
    ASSERT_LE(schedule.host_bytes(fraction), limit);
    ASSERT_TRUE(fraction == 1.0 || schedule.host_bytes(fraction + 0.01) > limit) << limit << ' ' << fraction;
  }
  EXPECT_EQ(schedule.fraction_within(1023), 0.0);
  // Not more than is asked for.
  Schedule half({.fraction = 0.5, .slots = 1});
  pass(half, 9);
  EXPECT_EQ(half.fraction_within(1U << 20), 0.5);
}

TEST(Schedule, SaysWhyNothingMoves) {
  Schedule few({.fraction = 1.0, .slots = 2});
  pass(few, 2);
  EXPECT_EQ(
      few.why_nothing_moves(),
      "all 2 groups of a forward stay, because the last 2 always do (offload.keep_last, offload.slots)");
  Schedule tiny({.fraction = 1e-10, .slots = 2});
  pass(tiny, 6);
  EXPECT_EQ(tiny.why_nothing_moves(), "offload.fraction = 1e-10 of the 4 groups that could is none");
  Schedule some({.fraction = 0.1, .slots = 2});
  pass(some, 6);
  EXPECT_EQ(some.why_nothing_moves(), "");
}

TEST(Schedule, RefusesWrongRules) {
  EXPECT_THROW(Schedule({.fraction = 1.1}), ConfigError);
  EXPECT_THROW(Schedule({.fraction = -0.1}), ConfigError);
  EXPECT_THROW(Schedule({.keep_last = -1}), ConfigError);
  EXPECT_THROW(Schedule({.slots = 0}), ConfigError);
}

}  // namespace
}  // namespace deltaport::offload
