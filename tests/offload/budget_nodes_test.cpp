// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/core/error.hpp"
#include "offload/pool_kinds.hpp"

namespace deltaport::offload {
namespace {

TEST(Budget, APoolLooksAtTheNodesThatItAllocatesOn) {
  const deltaport::test::TempFolder folder;
  const NumaTopology topology = NumaTopology::from_synthetic("numa:2 core:2 pu:1");
  for (const int node : topology.allowed_nodes()) {
    std::filesystem::create_directories(folder / concat("node", node));
    deltaport::test::write_file(folder / concat("node", node, "/meminfo"),
                                concat("Node ", node, " MemFree: 100 kB\n"));
  }
  ASSERT_EQ(topology.allowed_nodes().size(), 2U);
  const std::size_t available = 2 * 100 * 1024;
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
