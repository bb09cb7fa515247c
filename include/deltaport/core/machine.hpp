// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deltaport {

/// One NUMA node of this machine.
struct NumaNode {
  int index = 0;                ///< the operating system's number
  std::size_t total_bytes = 0;  ///< 0 when unknown
  std::size_t free_bytes = 0;   ///< in no use at all; 0 when unknown
  std::vector<int> cpus;        ///< the operating system's numbers, ascending
};

/// Nodes with their memory; empty when the system does not tell.
std::vector<NumaNode> numa_nodes();
/// Bytes of one node that can be had without swapping: what is free and the file cache that the kernel would
/// drop. 0 when unknown. `root` holds one folder per node.
std::size_t node_available_bytes(int node, const std::string& root = "/sys/devices/system/node");

/// "0-3,8" for {0,1,2,3,8}; "none" for nothing.
std::string index_list(const std::vector<int>& indices);

/// Processors that this process may run on (its affinity mask), ascending.
std::vector<int> allowed_cpus();
/// The physical cores of these processors, each once. Without hwloc every processor counts as a core.
std::vector<int> cores_of(const std::vector<int>& cpus);

/// Where the control group files are; tests put their own there.
struct CgroupFiles {
  std::string root = "/sys/fs/cgroup";
  std::string self = "/proc/self/cgroup";
};
/// Processors' worth of time that the control group grants, e.g. 2.5; infinity when it sets no limit.
double cgroup_cpu_limit(const CgroupFiles& files = {});

/// What the control group, or one above it, leaves of its memory.
struct CgroupMemory {
  std::size_t limit_bytes = 0;  ///< the lowest limit of all levels; 0 when none sets one
  std::size_t available_bytes =
      0;             ///< the least that a level with a limit leaves, file cache not counted as used
  std::string file;  ///< the limit behind `available_bytes`; empty when there is none
};
/// Reads control groups of version 1 and of version 2.
CgroupMemory cgroup_memory(const CgroupFiles& files = {});

}  // namespace deltaport
