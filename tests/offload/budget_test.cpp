// SPDX-License-Identifier: Apache-2.0
#include "offload/budget.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/core/error.hpp"
#include "offload/pool_kinds.hpp"

namespace deltaport::offload {
namespace {

using deltaport::test::message_of;

const PagePlacement node_two{{2}, {2}, true, "node 2"};
const CgroupMemory group{8000, 5000, "a group"};
constexpr std::size_t unknown = 0;

TEST(Budget, WithoutOneItIsNineTenthsOfTheLeast) {
  EXPECT_EQ(budget_of(0, group, 9000, node_two), 4500U);
  EXPECT_EQ(budget_of(0, group, 2000, node_two), 1800U);
  EXPECT_EQ(budget_of(0, group, unknown, node_two), 4500U);
  EXPECT_EQ(budget_of(0, {}, 1000, node_two), 900U);
}

TEST(Budget, NothingKnownIsNoBound) {
  EXPECT_EQ(budget_of(0, {}, unknown, node_two), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(budget_of(123, {}, unknown, node_two), 123U);
}

TEST(Budget, MoreThanTheGroupOrTheNodeLeavesIsRefusedWithNumbers) {
  EXPECT_EQ(budget_of(5000, group, 5000, node_two), 5000U);
  const std::string by_group = message_of<OutOfMemory>([] { budget_of(5001, group, 6000, node_two); });
  for (const char* part : {"5001", "5000", "a group", "8000", "fraction"})
    EXPECT_NE(by_group.find(part), std::string::npos) << by_group;
  const std::string by_node = message_of<OutOfMemory>([] { budget_of(4000, group, 3999, node_two); });
  for (const char* part : {"4000", "3999 bytes that node 2 has left", "fraction"})
    EXPECT_NE(by_node.find(part), std::string::npos) << by_node;
}

TEST(Budget, AFullGroupLeavesNothing) {
  EXPECT_EQ(budget_of(0, {8000, 0, "a group"}, 9000, node_two), 0U);
  EXPECT_THROW(budget_of(1, {8000, 0, "a group"}, 9000, node_two), OutOfMemory);
}

}  // namespace
}  // namespace deltaport::offload
