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

TEST(Budget, APoolLooksAtTheNodesThatItAllocatesOn) {
  const deltaport::test::TempFolder folder;
  const NumaTopology topology = NumaTopology::of_machine();
  for (const int node : topology.allowed_nodes()) {
    std::filesystem::create_directories(folder / concat("node", node));
    deltaport::test::write_file(folder / concat("node", node, "/meminfo"),
                                concat("Node ", node, " MemFree: 100 kB\n"));
  }
  const std::size_t available = topology.allowed_nodes().size() * 100 * 1024;
  if (available == 0) GTEST_SKIP() << "no nodes are known here";
  const auto make = [&](std::size_t budget) {
    auto source = std::make_unique<NumaSlabSource>(
        NumaSlabParts{topology, make_page_calls(topology), make_driver(), "nowhere", folder.path().string()},
        NumaSlabOptions{});
    PinnedPoolOptions options;
    options.budget_bytes = budget;
    options.cgroup = {"nowhere", "nowhere"};
    return std::make_unique<PinnedPool>(std::move(source), options);
  };
  EXPECT_EQ(make(0)->stats().budget, available / 10 * 9);
  EXPECT_EQ(make(available)->stats().budget, available);
  EXPECT_THROW(make(available + 1), OutOfMemory);
}

}  // namespace
}  // namespace deltaport::offload
