// SPDX-License-Identifier: Apache-2.0
#include "deltaport/comm/placement.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

using Ids = std::vector<std::string>;
constexpr double no_limit = std::numeric_limits<double>::infinity();

TEST(PlaceDevices, AllVisibleToAllRanks) {
  const Ids all{"A", "B", "C", "D"};
  const auto placement = place_devices({all, all, all, all});
  EXPECT_EQ(placement.device_of_rank, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(placement.warning, "");
}

TEST(PlaceDevices, LauncherShowsEachRankItsOwn) {
  const auto placement = place_devices({Ids{"A"}, Ids{"B"}, Ids{"C"}});
  EXPECT_EQ(placement.device_of_rank, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(placement.warning, "");
}

TEST(PlaceDevices, EachRankSeesAnotherOrder) {
  const auto placement = place_devices({Ids{"A", "B"}, Ids{"A", "B"}, Ids{"B", "C"}});
  EXPECT_EQ(placement.device_of_rank, (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(placement.warning, "");
}

TEST(PlaceDevices, MoreRanksThanDevicesWarnsAndNamesThem) {
  const Ids two{"A", "B"};
  const auto placement = place_devices({two, two, two});
  EXPECT_EQ(placement.device_of_rank, (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(placement.warning, "device A is shared by local ranks 0 2");
}

TEST(PlaceDevices, SameSingleDeviceForAllWarns) {
  const auto placement = place_devices({Ids{"A"}, Ids{"A"}});
  EXPECT_EQ(placement.device_of_rank, (std::vector<int>{0, 0}));
  EXPECT_EQ(placement.warning, "device A is shared by local ranks 0 1");
}

TEST(PlaceDevices, FewerRanksThanDevicesAndNoDevice) {
  EXPECT_EQ(place_devices({Ids{"A", "B"}}).device_of_rank, std::vector<int>{0});
  EXPECT_EQ(place_devices({Ids{}, Ids{"A"}}).device_of_rank, (std::vector<int>{-1, 0}));
}

TEST(ThreadsForRank, BoundRanksUseTheirOwnCores) {
  EXPECT_EQ(threads_for_rank({{0, 1, 2, 3}, {4, 5}}, 0, no_limit), 4);
  EXPECT_EQ(threads_for_rank({{0, 1, 2, 3}, {4, 5}}, 1, no_limit), 2);
}

TEST(ThreadsForRank, UnboundRanksShare) {
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(threads_for_rank({all}, 0, no_limit), 8);
  EXPECT_EQ(threads_for_rank({all, all, all}, 2, no_limit), 2);
}

TEST(ThreadsForRank, AtLeastOne) {
  EXPECT_EQ(threads_for_rank({{0}, {0}, {0}}, 1, no_limit), 1);
  EXPECT_EQ(threads_for_rank({{}}, 0, no_limit), 1);
  EXPECT_EQ(threads_for_rank({{0, 1, 2, 3}}, 0, 0.3), 1);
}

TEST(ThreadsForRank, ControlGroupQuotaIsSharedByTheRanks) {
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(threads_for_rank({all}, 0, 2.5), 2);
  EXPECT_EQ(threads_for_rank({{0, 1, 2, 3}, {4, 5, 6, 7}}, 0, 4.0), 2);
}

TEST(ThreadsForRank, RejectsARankThatIsNotThere) {
  EXPECT_THROW(threads_for_rank({{0}}, 1, no_limit), CommError);
  EXPECT_THROW(threads_for_rank({}, 0, no_limit), CommError);
}

}  // namespace
}  // namespace deltaport
