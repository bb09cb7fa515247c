// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace deltaport::offload {

/// NUMA nodes and PCI devices of a machine, also of nodes that this process may not use. Numbers are the
/// operating system's. Loading takes some milliseconds and allocates; afterwards everything is const and
/// thread-safe. In builds without hwloc there are no nodes and no devices.
class NumaTopology {
 public:
  /// The machine this process runs on. Throws Error when hwloc cannot load it.
  static NumaTopology of_machine();
  /// A made-up machine in hwloc's notation, e.g. "numa:2 core:4 pu:1"; it has no PCI devices. Throws ConfigError.
  static NumaTopology from_synthetic(const std::string& description);
  /// A machine as `lstopo --of xml` writes it; `xml` is the text, not a file's name. Throws ConfigError.
  static NumaTopology from_xml(const std::string& xml);

  /// The same machine, of which only these nodes may be used (as a batch system's cpuset does). Throws Error for
  /// a topology of this machine (its own cpuset holds there) and for nodes that it does not have.
  NumaTopology with_allowed(const std::vector<int>& nodes) const;

  /// Whether memory can be placed by it.
  bool is_this_machine() const;
  /// All nodes, ascending.
  std::vector<int> nodes() const;
  /// Those that this process may allocate on, ascending.
  std::vector<int> allowed_nodes() const;
  /// The nodes of the part of the machine that the PCI device hangs on, e.g. "0000:1b:00.0" (upper case and eight
  /// digits for the domain do as well). nullopt when there is no such device, or when it hangs on the whole
  /// machine, which says nothing of its place.
  std::optional<std::vector<int>> nodes_of_pci(const std::string& pci) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit NumaTopology(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// "0000:1b:00.0" for every way to write it: upper case, eight digits for the domain, none for it. Throws
/// ConfigError for anything else.
std::string normalised_pci(const std::string& pci);

/// Where else to ask about a device when hwloc does not know; tests put their own there.
struct LocalitySources {
  /// The driver's node number, -1 when it does not know. Empty: there is no driver.
  std::function<int()> driver;
  std::string sysfs = "/sys/bus/pci/devices";
};

/// The nodes on which memory for a device should be.
struct DeviceLocality {
  std::vector<int> nodes;  ///< ascending, all of them allowed; never empty where the topology has nodes
  bool known = false;      ///< false: `nodes` are all allowed ones, because nothing tells which is near
  std::string why;         ///< where the answer comes from, in words
};

/// Asks, in this order, hwloc, the driver and sysfs. A node that this process may not use, an unknown device and an
/// empty `pci` (no device) all give every allowed node and say why: no node is guessed. Throws ConfigError when
/// `pci` is no PCI address.
DeviceLocality locality_of(const NumaTopology& topology, const std::string& pci,
                           const LocalitySources& sources = {});

/// The same on this machine, with the driver of this build. Loads the topology each time.
DeviceLocality device_locality(const std::string& pci);

/// "node 0", "nodes 0,2-3"; "nodes none" for nothing.
std::string node_list(const std::vector<int>& nodes);

}  // namespace deltaport::offload
