// SPDX-License-Identifier: Apache-2.0
#include <sched.h>

#include <set>

#include "deltaport/comm/placement.hpp"

#ifdef DELTAPORT_HAVE_HWLOC
#include <hwloc.h>

#include <fstream>
#include <sstream>
#endif

namespace deltaport {

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
namespace {

class Topology {
 public:
  Topology() { loaded_ = hwloc_topology_init(&topology_) == 0 && hwloc_topology_load(topology_) == 0; }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
  explicit operator bool() const { return loaded_; }
  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

std::vector<int> cpus_of(hwloc_const_bitmap_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) cpus.push_back(cpu);
  return cpus;
}

/// hwloc does not know what is free; Linux does: "Node 0 MemFree:  123 kB".
std::size_t free_bytes_of(int node) {
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) + "/meminfo");
  for (std::string line; std::getline(file, line);) {
    const auto label = line.find("MemFree:");
    if (label == std::string::npos) continue;
    std::size_t kilobytes = 0;
    std::istringstream(line.substr(label + 8)) >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

std::vector<int> cores_of(const std::vector<int>& cpus) {
  const Topology topology;
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
  const Topology topology;
  if (!topology) return {};
  std::vector<NumaNode> nodes;
  const int count = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_NUMANODE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t node =
        hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, static_cast<unsigned>(i));
    const int index = static_cast<int>(node->os_index);
    nodes.push_back({index, static_cast<std::size_t>(node->attr->numanode.local_memory), free_bytes_of(index),
                     cpus_of(node->cpuset)});
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
