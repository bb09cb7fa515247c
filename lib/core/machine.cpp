// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/machine.hpp"

#include <sched.h>

#include <fstream>
#include <set>
#include <sstream>

#ifdef DELTAPORT_HAVE_HWLOC
#include "core/hwloc_topology.hpp"
#endif

namespace deltaport {
namespace {

/// hwloc does not know what is free; Linux does: "Node 0 MemFree:  123 kB". The sum of the lines named.
std::size_t meminfo_bytes(int node, const std::set<std::string>& labels, const std::string& root) {
  std::ifstream file(root + "/node" + std::to_string(node) + "/meminfo");
  std::size_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    std::string word, number, label;
    std::size_t kilobytes = 0;
    if (std::istringstream(line) >> word >> number >> label >> kilobytes && labels.contains(label))
      sum += kilobytes * 1024;
  }
  return sum;
}

}  // namespace

std::string index_list(const std::vector<int>& indices) {
  if (indices.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < indices.size();) {
    std::size_t last = i;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(indices[i]);
    if (last > i) text += '-' + std::to_string(indices[last]);
    i = last + 1;
  }
  return text;
}

std::size_t node_available_bytes(int node, const std::string& root) {
  return meminfo_bytes(node, {"MemFree:", "Active(file):", "Inactive(file):"}, root);
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // Machines with more than 1024 processors need a larger mask: grow until the kernel is content.
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* mask = CPU_ALLOC(capacity);
    if (mask == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    const bool done = sched_getaffinity(0, bytes, mask) == 0;
    for (int cpu = 0; done && cpu < capacity; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(cpu);
    CPU_FREE(mask);
    if (done) break;
  }
  return cpus;
}

#ifdef DELTAPORT_HAVE_HWLOC
std::vector<int> cores_of(const std::vector<int>& cpus) {
  const HwlocTopology topology;
  if (!topology) return cpus;
  std::set<int> cores;
  for (const int cpu : cpus) {
    const hwloc_obj_t unit = hwloc_get_pu_obj_by_os_index(topology.get(), static_cast<unsigned>(cpu));
    const hwloc_obj_t core =
        unit ? hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_CORE, unit) : nullptr;
    // A core is known by its first processor: unique on the machine, unlike core numbers of several sockets.
    cores.insert(core ? hwloc_bitmap_first(core->cpuset) : cpu);
  }
  return {cores.begin(), cores.end()};
}

std::vector<NumaNode> numa_nodes() {
  const HwlocTopology topology;
  if (!topology) return {};
  std::vector<NumaNode> nodes;
  const int count = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t node =
        hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    const int index = static_cast<int>(node->os_index);
    nodes.push_back({index, static_cast<std::size_t>(node->attr->numanode.local_memory),
                     meminfo_bytes(index, {"MemFree:"}, "/sys/devices/system/node"),
                     indices_of(node->cpuset)});
  }
  return nodes;
}
#else
std::vector<int> cores_of(const std::vector<int>& cpus) {
  return cpus;
}
std::vector<NumaNode> numa_nodes() {
  return {};
}
#endif

}  // namespace deltaport
