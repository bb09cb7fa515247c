// SPDX-License-Identifier: Apache-2.0
// Made-up machines: with two and eight nodes, with devices, with a cpuset that hides nodes.
#include <gtest/gtest.h>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/offload/numa_topology.hpp"
#include "offload/machine_xml.hpp"

namespace deltaport::offload {
namespace {

using deltaport::test::message_of;
using deltaport::test::TempFolder;
using test::machine_xml;
using Nodes = std::vector<int>;

/// No driver, and a folder without devices in the place of sysfs.
LocalitySources nobody() {
  return {nullptr, "nowhere"};
}

TEST(NumaTopology, SyntheticMachines) {
  const NumaTopology two = NumaTopology::from_synthetic("numa:2 core:4 pu:1");
  EXPECT_EQ(two.nodes(), (Nodes{0, 1}));
  EXPECT_EQ(two.allowed_nodes(), (Nodes{0, 1}));
  EXPECT_FALSE(two.is_this_machine());
  EXPECT_EQ(two.nodes_of_pci("0000:1b:00.0"), std::nullopt);
  EXPECT_EQ(NumaTopology::from_synthetic("pack:2 numa:4 core:2 pu:2").nodes().size(), 8U);
}

TEST(NumaTopology, UnusableDescriptionsAreRefused) {
  EXPECT_NE(message_of<ConfigError>([] { NumaTopology::from_synthetic("numa:x"); }).find("'numa:x'"),
            std::string::npos);
  EXPECT_THROW(NumaTopology::from_xml("no xml"), ConfigError);
}

TEST(NumaTopology, CpusetsHideNodesButNotTheirDevices) {
  const NumaTopology half = NumaTopology::from_xml(machine_xml(8)).with_allowed({4, 5});
  EXPECT_EQ(half.nodes().size(), 8U);
  EXPECT_EQ(half.allowed_nodes(), (Nodes{4, 5}));
  EXPECT_EQ(half.nodes_of_pci("0000:13:00.0"), Nodes{3});
  EXPECT_NE(message_of<Error>([&] { half.with_allowed({9}); }).find("node 9 is not there"),
            std::string::npos);
}

TEST(NumaTopology, ThisMachineHasItsOwnCpuset) {
  const NumaTopology machine = NumaTopology::of_machine();
  EXPECT_TRUE(machine.is_this_machine());
  EXPECT_FALSE(machine.allowed_nodes().empty());
  EXPECT_THROW(machine.with_allowed(machine.nodes()), Error);
}

TEST(Pci, EveryWayToWriteIt) {
  for (const char* text : {"0000:1b:00.0", "00000000:1B:00.0", "1B:00.0", "1b:0.0"})
    EXPECT_EQ(normalised_pci(text), "0000:1b:00.0") << text;
  EXPECT_EQ(normalised_pci("00010000:01:02.3"), "10000:01:02.3");
  for (const char* text :
       {"1b", "0000:1b:00", "0000:1b:00.0x", "gpu0", "0000:1b:00.0 ", " 1b:00.0", "-1:00.0"})
    EXPECT_THROW(normalised_pci(text), ConfigError) << text;
}

TEST(Locality, HwlocKnowsTheNodeOfEachDevice) {
  for (const int nodes : {2, 8}) {
    const NumaTopology machine = NumaTopology::from_xml(machine_xml(nodes));
    for (int n = 0; n < nodes; ++n) {
      const DeviceLocality found = locality_of(machine, concat("00000000:1", n, ":00.0"), nobody());
      EXPECT_EQ(found.nodes, Nodes{n});
      EXPECT_TRUE(found.known);
      EXPECT_EQ(found.why, concat("device 0000:1", n, ":00.0 is on node ", n, " (hwloc)"));
    }
  }
}

TEST(Locality, WhatNobodyKnowsIsAllNodesAndNotTheFirst) {
  const NumaTopology machine = NumaTopology::from_xml(machine_xml(8));
  for (const char* pci : {"0000:f0:00.0", "0000:aa:00.0"}) {  // at the root; not there
    const DeviceLocality found = locality_of(machine, pci, nobody());
    EXPECT_EQ(found.nodes, (Nodes{0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_FALSE(found.known);
    EXPECT_NE(found.why.find(concat("knows the node of device ", pci)), std::string::npos) << found.why;
  }
  EXPECT_EQ(locality_of(machine, "", nobody()).nodes.size(), 8U);
  EXPECT_FALSE(locality_of(machine, "", nobody()).known);
}

TEST(Locality, TheDriverIsAskedNextThenSysfs) {
  const NumaTopology machine = NumaTopology::from_xml(machine_xml(8));
  const TempFolder folder;
  std::filesystem::create_directories(folder / "0000:f0:00.0");
  deltaport::test::write_file(folder / "0000:f0:00.0/numa_node", "6\n");
  LocalitySources sources{[] { return 5; }, folder.path().string()};
  EXPECT_EQ(locality_of(machine, "0000:12:00.0", sources).nodes, Nodes{2}) << "hwloc comes first";
  EXPECT_EQ(locality_of(machine, "0000:F0:00.0", sources).nodes, Nodes{5});
  sources.driver = [] { return -1; };
  const DeviceLocality found = locality_of(machine, "0000:F0:00.0", sources);
  EXPECT_EQ(found.nodes, Nodes{6});
  EXPECT_EQ(found.why, "device 0000:f0:00.0 is on node 6 (sysfs)");
  deltaport::test::write_file(folder / "0000:f0:00.0/numa_node", "-1\n");
  EXPECT_FALSE(locality_of(machine, "0000:f0:00.0", sources).known);
}

TEST(Locality, ANodeOutsideTheCpusetGivesTheAllowedOnesAndSaysSo) {
  const NumaTopology machine = NumaTopology::from_xml(machine_xml(8)).with_allowed({0, 3});
  EXPECT_EQ(locality_of(machine, "0000:13:00.0", nobody()).nodes, Nodes{3});
  const DeviceLocality found = locality_of(machine, "0000:16:00.0", nobody());
  EXPECT_EQ(found.nodes, (Nodes{0, 3}));
  EXPECT_FALSE(found.known);
  EXPECT_EQ(found.why,
            "device 0000:16:00.0 is on node 6 (hwloc), which this process's cpuset leaves out, so any "
            "allowed one: nodes 0,3");
}

TEST(Locality, WrongAddressesAreRefused) {
  EXPECT_THROW(locality_of(NumaTopology::of_machine(), "gpu0", nobody()), ConfigError);
}

}  // namespace
}  // namespace deltaport::offload
