// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "deltaport/core/error.hpp"
#include "deltaport/core/machine.hpp"
#include "deltaport/offload/numa_topology.hpp"

namespace deltaport::offload {
namespace {

int sysfs_node(const std::string& root, const std::string& pci) {
  int node = -1;
  std::ifstream(root + '/' + pci + "/numa_node") >> node;
  return node;
}

struct Answer {
  std::vector<int> nodes;  // empty: nobody knows
  std::string source;
};

Answer ask(const NumaTopology& topology, const std::string& pci, const LocalitySources& sources) {
  if (const auto nodes = topology.nodes_of_pci(pci)) return {*nodes, "hwloc"};
  if (sources.driver)
    if (const int node = sources.driver(); node >= 0) return {{node}, "the driver"};
  if (const int node = sysfs_node(sources.sysfs, pci); node >= 0) return {{node}, "sysfs"};
  return {};
}

}  // namespace

std::string normalised_pci(const std::string& pci) {
  const bool plain = pci.find_first_not_of("0123456789abcdefABCDEF:.") == std::string::npos;
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  int end = -1;
  const auto whole = [&] { return plain && end == static_cast<int>(pci.size()); };
  // Lengths bound what is read, so that a number too large is seen as a wrong text.
  const bool with_domain =
      std::sscanf(pci.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) == 4 && whole();
  if (!with_domain) {
    domain = 0;
    end = -1;
    const bool without =
        std::sscanf(pci.c_str(), "%2x:%2x.%1x%n", &bus, &device, &function, &end) == 3 && whole();
    DELTAPORT_VALIDATE(without, ConfigError, "'", pci, "' is no PCI address; one is 0000:1b:00.0");
  }
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return text;
}

DeviceLocality locality_of(const NumaTopology& topology, const std::string& pci,
                           const LocalitySources& sources) {
  const std::vector<int> allowed = topology.allowed_nodes();
  if (pci.empty()) return {allowed, false, concat("no device, so any allowed one: ", node_list(allowed))};
  const std::string address = normalised_pci(pci);
  const Answer answer = ask(topology, address, sources);
  if (answer.nodes.empty())
    return {allowed, false,
            concat("neither hwloc nor the driver nor sysfs knows the node of device ", address,
                   ", so any allowed one: ", node_list(allowed))};
  std::vector<int> usable;
  std::set_intersection(answer.nodes.begin(), answer.nodes.end(), allowed.begin(), allowed.end(),
                        std::back_inserter(usable));
  const std::string place =
      concat("device ", address, " is on ", node_list(answer.nodes), " (", answer.source, ")");
  if (usable.empty())
    return {
        allowed, false,
        concat(place, ", which this process's cpuset leaves out, so any allowed one: ", node_list(allowed))};
  return {usable, true, place};
}

std::string node_list(const std::vector<int>& nodes) {
  return concat(nodes.size() == 1 ? "node " : "nodes ", index_list(nodes));
}

}  // namespace deltaport::offload
