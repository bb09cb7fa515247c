// SPDX-License-Identifier: Apache-2.0
#include "deltaport/offload/numa_topology.hpp"

#include <algorithm>

#include "deltaport/core/error.hpp"
#include "offload/bitmap.hpp"
#include "offload/topology_impl.hpp"

namespace deltaport::offload {
namespace {

// Devices are kept, and so are nodes that a cpuset hides: without them a device of a hidden node would seem to hang on
// the whole machine, and one could not say why its node is not used.
bool configure(hwloc_topology_t topology, const NumaTopology::Impl::Source& source) {
  return source(topology) &&
         hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
         hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0;
}

}  // namespace

NumaTopology::Impl::Impl(Source from)
    : source(std::move(from)), topology([this](hwloc_topology_t t) { return configure(t, source); }) {}

NumaTopology NumaTopology::of_machine() {
  auto impl = std::make_shared<const Impl>([](hwloc_topology_t) { return true; });
  DELTAPORT_VALIDATE(impl->topology, Error, "hwloc cannot read the topology of this machine");
  return NumaTopology(impl);
}

NumaTopology NumaTopology::from_synthetic(const std::string& description) {
  auto impl = std::make_shared<const Impl>([description](hwloc_topology_t t) {
    return hwloc_topology_set_synthetic(t, description.c_str()) == 0;
  });
  DELTAPORT_VALIDATE(impl->topology, ConfigError, "'", description, "' is no synthetic topology of hwloc");
  return NumaTopology(impl);
}

NumaTopology NumaTopology::from_xml(const std::string& xml) {
  auto impl = std::make_shared<const Impl>([xml](hwloc_topology_t t) {
    return hwloc_topology_set_xmlbuffer(t, xml.c_str(), static_cast<int>(xml.size()) + 1) == 0;
  });
  DELTAPORT_VALIDATE(impl->topology, ConfigError, "xml: hwloc cannot read these ", xml.size(),
                     " bytes as a topology");
  return NumaTopology(impl);
}

NumaTopology NumaTopology::with_allowed(const std::vector<int>& allowed) const {
  DELTAPORT_VALIDATE(!is_this_machine(), Error,
                     "allowed nodes: those of this machine are set by its cpuset, not here");
  const std::vector<int> all = nodes();
  for (const int node : allowed)
    DELTAPORT_VALIDATE(std::find(all.begin(), all.end(), node) != all.end(), Error, "allowed nodes: node ",
                       node, " is not there; the topology has ", node_list(all));
  auto impl = std::make_shared<const Impl>(impl_->source);
  const int status =
      hwloc_topology_allow(impl->topology.get(), nullptr, Bitmap(allowed).get(), HWLOC_ALLOW_FLAG_CUSTOM);
  DELTAPORT_VALIDATE(status == 0, Error, "allowed nodes: hwloc does not take ", node_list(allowed));
  return NumaTopology(impl);
}

bool NumaTopology::is_this_machine() const {
  return hwloc_topology_is_thissystem(impl_->topology.get()) != 0;
}

std::vector<int> NumaTopology::nodes() const {
  return indices_of(hwloc_topology_get_topology_nodeset(impl_->topology.get()));
}

std::vector<int> NumaTopology::allowed_nodes() const {
  return indices_of(hwloc_topology_get_allowed_nodeset(impl_->topology.get()));
}

std::optional<std::vector<int>> NumaTopology::nodes_of_pci(const std::string& pci) const {
  const hwloc_topology_t topology = impl_->topology.get();
  const hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, normalised_pci(pci).c_str());
  if (device == nullptr) return std::nullopt;
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, device);
  if (place == nullptr || place->nodeset == nullptr || hwloc_bitmap_iszero(place->nodeset))
    return std::nullopt;
  // The root of the tree, or a part with all nodes in it: the firmware did not say where the device is.
  if (hwloc_bitmap_isincluded(hwloc_topology_get_topology_nodeset(topology), place->nodeset))
    return std::nullopt;
  return indices_of(place->nodeset);
}

}  // namespace deltaport::offload
