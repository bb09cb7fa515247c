// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/machine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/core/blas.hpp"

namespace deltaport {
namespace {

/// Control group files in a folder of their own.
class ControlGroup : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  CgroupFiles files() const {
    return {(folder_.path() / "root").string(), (folder_.path() / "self").string()};
  }
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

 private:
  test::TempFolder folder_;
};

TEST(IndexList, Ranges) {
  EXPECT_EQ(index_list({}), "none");
  EXPECT_EQ(index_list({3}), "3");
  EXPECT_EQ(index_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(Machine, ThisProcessMayRunSomewhere) {
  const auto cpus = allowed_cpus();
  ASSERT_FALSE(cpus.empty());
  EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
  const auto cores = cores_of(cpus);
  EXPECT_FALSE(cores.empty());
  EXPECT_LE(cores.size(), cpus.size());
  EXPECT_GT(cgroup_cpu_limit(), 0.0);
}

TEST(Machine, NumaNodesHaveMemory) {
  for (const NumaNode& node : numa_nodes()) {
    EXPECT_GE(node.index, 0);
    EXPECT_LE(node.free_bytes, node.total_bytes);
    EXPECT_LE(node_available_bytes(node.index), node.total_bytes);
  }
}

TEST_F(ControlGroup, NoFilesMeansNoLimit) {
  const CgroupMemory memory = cgroup_memory(files());
  EXPECT_EQ(memory.limit_bytes, 0U);
  EXPECT_EQ(memory.file, "");
  EXPECT_TRUE(std::isinf(cgroup_cpu_limit(files())));
}

TEST_F(ControlGroup, VersionTwoTakesTheLevelThatLeavesLeast) {
  write("self", "0::/job/step\n");
  write("root/job/step/memory.max", "max\n");
  write("root/job/step/memory.current", "500\n");
  write("root/job/memory.max", "10000\n");
  write("root/job/memory.current", "7000\n");
  write("root/job/memory.stat", "anon 4000\ninactive_file 1500\nactive_file 500\n");
  write("root/memory.max", "9000\n");
  write("root/memory.current", "1000\n");
  const CgroupMemory memory = cgroup_memory(files());
  EXPECT_EQ(memory.limit_bytes, 9000U);
  EXPECT_EQ(memory.available_bytes, 5000U);  // 10000 - (7000 - 2000 of file cache)
  EXPECT_EQ(memory.file, path("root/job/memory.max"));
}

TEST_F(ControlGroup, VersionOne) {
  write("self", "7:cpu,cpuacct:/a\n4:memory:/b\n");
  write("root/memory/b/memory.limit_in_bytes", "4096000\n");
  write("root/memory/b/memory.usage_in_bytes", "1096000\n");
  write("root/memory/b/memory.stat", "active_file 7\ntotal_inactive_file 96000\ntotal_active_file 0\n");
  write("root/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("root/cpu/a/cpu.cfs_quota_us", "250000\n");
  write("root/cpu/a/cpu.cfs_period_us", "100000\n");
  const CgroupMemory memory = cgroup_memory(files());
  EXPECT_EQ(memory.limit_bytes, 4096000U);
  EXPECT_EQ(memory.available_bytes, 3096000U);
  EXPECT_DOUBLE_EQ(cgroup_cpu_limit(files()), 2.5);
}

TEST_F(ControlGroup, MoreUsedThanAllowedLeavesNothing) {
  write("self", "0::/\n");
  write("root/memory.max", "1000\n");
  write("root/memory.current", "1200\n");
  EXPECT_EQ(cgroup_memory(files()).available_bytes, 0U);
  EXPECT_EQ(cgroup_memory(files()).limit_bytes, 1000U);
}

TEST_F(ControlGroup, NodeMemoryCountsTheFileCacheAsAvailable) {
  write("root/node3/meminfo",
        "Node 3 MemTotal: 100 kB\nNode 3 MemFree: 10 kB\nNode 3 Active(file): 5 kB\nNode 3 Inactive(file): 7 "
        "kB\n"
        "Node 3 Inactive: 50 kB\n");
  EXPECT_EQ(node_available_bytes(3, path("root")), 22U * 1024);
  EXPECT_EQ(node_available_bytes(4, path("root")), 0U);
}

TEST(BlasAdvice, OldKernelsOnANewProcessor) {
  EXPECT_NE(blas_advice("Prescott", true, true).find("OPENBLAS_CORETYPE=SKYLAKEX"), std::string::npos);
  EXPECT_NE(blas_advice("Nehalem", true, false).find("OPENBLAS_CORETYPE=HASWELL"), std::string::npos);
  EXPECT_EQ(blas_advice("Nehalem", false, false), "");
  for (const char* good : {"SkylakeX", "Haswell", "Zen", "Cooperlake", "SapphireRapids"})
    EXPECT_EQ(blas_advice(good, true, true), "") << good;
}

}  // namespace
}  // namespace deltaport
