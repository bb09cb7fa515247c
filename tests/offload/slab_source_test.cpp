// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/core/machine.hpp"
#include "offload/fakes.hpp"
#include "offload/machine_xml.hpp"
#include "offload/numa_slab_source.hpp"

namespace deltaport::offload {
namespace {

using deltaport::test::message_of;
using test::FakeDriver;
using test::FakePages;
using Nodes = std::vector<int>;

/// Slabs of a made-up machine of eight nodes.
struct Machine {
  std::shared_ptr<FakeDriver> driver = std::make_shared<FakeDriver>();
  std::unique_ptr<FakePages> owned = std::make_unique<FakePages>();
  FakePages& pages = *owned;
  NumaTopology topology = NumaTopology::from_xml(test::machine_xml(8));
  deltaport::test::TempFolder folder;

  std::unique_ptr<NumaSlabSource> source(const NumaSlabOptions& options) {
    const std::string root = folder.path().string();
    return std::make_unique<NumaSlabSource>(NumaSlabParts{topology, std::move(owned), driver, root, root},
                                            options);
  }
};

TEST(SlabSource, BindsToTheDevicesNodeRegistersAndVerifies) {
  Machine machine;
  const auto source = machine.source({"0000:15:00.0", true});
  const Slab slab = source->allocate(5000);
  EXPECT_EQ(slab.bytes, 2 * source->page_bytes());
  EXPECT_EQ(machine.pages.bound, Nodes{5});
  EXPECT_EQ(slab.placement.asked, Nodes{5});
  EXPECT_EQ(slab.placement.got, Nodes{5});
  EXPECT_TRUE(slab.placement.achieved);
  EXPECT_TRUE(slab.pinned);
  EXPECT_TRUE(machine.driver->registered.contains(slab.data));
  source->release(slab);
  EXPECT_TRUE(machine.driver->registered.empty());
  EXPECT_EQ(machine.pages.live_bytes, 0U);
}

TEST(SlabSource, AskedNodesOfADeviceThatOnlyTheDriverKnows) {
  Machine machine;
  machine.driver->node = 2;
  const auto source = machine.source({"0000:f0:00.0", true});
  const Slab slab = source->allocate(1);
  EXPECT_EQ(slab.placement.asked, Nodes{2});
  source->release(slab);
}

TEST(SlabSource, BlockedMbindTouchesFromTheNodeAndSaysSo) {
  Machine machine;
  machine.pages.binds = false;
  const auto source = machine.source({"0000:11:00.0", false});
  const Slab slab = source->allocate(100);
  EXPECT_EQ(machine.pages.touched_from, Nodes{1});
  EXPECT_EQ(slab.placement.why, "device 0000:11:00.0 is on node 1 (hwloc); mbind: Operation not permitted");
  EXPECT_TRUE(slab.placement.achieved) << "the pages are where they should be, bound or not";
  source->release(slab);
}

TEST(SlabSource, PagesElsewhereAreReported) {
  Machine machine;
  machine.pages.elsewhere = Nodes{0, 1};
  const auto source = machine.source({"0000:11:00.0", false});
  const Slab slab = source->allocate(100);
  EXPECT_FALSE(slab.placement.achieved);
  EXPECT_EQ(slab.placement.got, (Nodes{0, 1}));
  EXPECT_NE(slab.placement.why.find("pages are on nodes 0-1 instead of node 1"), std::string::npos);
  source->release(slab);
}

TEST(SlabSource, PagesThatCannotBeLookedUpAreNotClaimed) {
  Machine machine;
  machine.pages.tells = false;
  const auto source = machine.source({"0000:11:00.0", false});
  const Slab slab = source->allocate(100);
  EXPECT_FALSE(slab.placement.achieved);
  EXPECT_TRUE(slab.placement.got.empty());
  EXPECT_NE(slab.placement.why.find("move_pages"), std::string::npos);
  source->release(slab);
}

TEST(SlabSource, StrictMakesEachFallbackAnErrorAndLeavesNothingBehind) {
  for (const int way : {0, 1}) {
    Machine machine;
    if (way == 0) machine.pages.elsewhere = Nodes{4};
    if (way == 1) machine.pages.tells = false;
    const auto source = machine.source({"0000:11:00.0", true});
    const std::string message = message_of<Error>([&] { source->allocate(100); });
    EXPECT_NE(message.find("strict"), std::string::npos) << message;
    EXPECT_EQ(machine.pages.live_bytes, 0U);
    EXPECT_TRUE(machine.driver->registered.empty());
  }
  Machine unknown;
  EXPECT_NE(message_of<Error>([&] {
              unknown.source({"0000:f0:00.0", true});
            }).find("neither hwloc"),
            std::string::npos);
  Machine hidden;
  hidden.topology = hidden.topology.with_allowed({0, 1});
  EXPECT_NE(message_of<Error>([&] {
              hidden.source({"0000:15:00.0", true});
            }).find("cpuset leaves out"),
            std::string::npos);
}

TEST(SlabSource, AMadeUpMachineIsToldOnceWithTheKey) {
  const NumaTopology topology = NumaTopology::from_xml(test::machine_xml(8));
  NumaSlabSource source(NumaSlabParts{topology, make_page_calls(topology), std::make_shared<FakeDriver>(),
                                      "nowhere", "nowhere"},
                        {"", true});
  const std::string message = message_of<Error>([&] { source.allocate(100); });
  const std::string reason = "the topology is not this machine's";
  EXPECT_NE(message.find("offload.strict_numa"), std::string::npos) << message;
  ASSERT_NE(message.find(reason), std::string::npos) << message;
  EXPECT_EQ(message.find(reason), message.rfind(reason)) << message;
}

TEST(SlabSource, FailedRegistrationIsAnErrorAndLeavesNothingBehind) {
  Machine machine;
  machine.driver->refusal = "out of lockable memory";
  const auto source = machine.source({"0000:11:00.0", false});
  EXPECT_NE(message_of<OutOfMemory>([&] { source->allocate(8192); }).find("out of lockable memory"),
            std::string::npos);
  EXPECT_EQ(machine.pages.live_bytes, 0U);
}

TEST(SlabSource, NoMemoryIsAnError) {
  Machine machine;
  machine.pages.limit_bytes = 8192;
  const auto source = machine.source({});
  EXPECT_THROW(source->allocate(8193), OutOfMemory);
  EXPECT_THROW(source->allocate(0), OutOfMemory);
  EXPECT_THROW(source->allocate(static_cast<std::size_t>(-1)), OutOfMemory);
}

TEST(SlabSource, CountsWhatTheAskedNodesHave) {
  Machine machine;
  for (const int node : {1, 2}) {
    std::filesystem::create_directories(machine.folder / concat("node", node));
    deltaport::test::write_file(machine.folder / concat("node", node, "/meminfo"),
                                concat("Node ", node, " MemFree: ", node * 10, " kB\n"));
  }
  const auto source = machine.source({"0000:12:00.0", false});
  EXPECT_EQ(source->available_bytes(), 20U * 1024);
  machine.pages.binds = false;
  source->release(source->allocate(1));
  EXPECT_EQ(source->available_bytes(), 30U * 1024) << "not bound: from any node";
}

std::size_t resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(SlabSource, OfThisMachineIsWhereItSays) {
  const auto source = make_numa_slab_source({});
  const std::size_t before = resident_bytes();
  constexpr std::size_t bytes = (std::size_t{48} << 20) + 12345;
  const Slab slab = source->allocate(bytes);
  EXPECT_LT(slab.bytes, bytes + source->page_bytes());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab.data) % source->page_bytes(), 0U);
  EXPECT_EQ(slab.placement.asked, NumaTopology::of_machine().allowed_nodes());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep memory of their own
  const double grown = static_cast<double>(resident_bytes() - before);
  EXPECT_GE(grown, 0.98 * static_cast<double>(bytes)) << "all pages are there";
  EXPECT_LE(grown, 1.02 * static_cast<double>(bytes)) << "and no others";
#else
  (void)before;
#endif
  // Where the system tells at all, no page is anywhere but on an allowed node.
  EXPECT_EQ(slab.placement.achieved, !slab.placement.got.empty()) << slab.placement.why;
  RecordProperty("placement", slab.placement.why + " -> " + node_list(slab.placement.got));
  source->release(slab);
}

TEST(SlabSource, TouchingFromANodeLeavesTheCallersBindingAlone) {
  const NumaTopology topology = NumaTopology::of_machine();
  const auto pages = make_page_calls(topology);
  const std::vector<int> before = allowed_cpus();
  const std::size_t bytes = std::size_t{1} << 20;
  void* data = pages->allocate_anywhere(bytes);
  const std::size_t resident = resident_bytes();
  pages->touch_from({topology.allowed_nodes().front()}, data, bytes);
  EXPECT_GT(resident_bytes(), resident);
  EXPECT_EQ(allowed_cpus(), before);
  pages->free(data, bytes);
}

}  // namespace
}  // namespace deltaport::offload
