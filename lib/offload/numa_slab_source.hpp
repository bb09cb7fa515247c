// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "deltaport/offload/numa_topology.hpp"
#include "deltaport/offload/slab_source.hpp"
#include "offload/driver.hpp"
#include "offload/page_calls.hpp"

namespace deltaport::offload {

/// The parts that make_numa_slab_source() puts together for this machine, and tests for others.
struct NumaSlabParts {
  NumaTopology topology;
  std::unique_ptr<PageCalls> pages;
  std::shared_ptr<Driver> driver;
  std::string pci_root = "/sys/bus/pci/devices";
  std::string node_root = "/sys/devices/system/node";
};

/// Slabs on a device's nodes: allocate bound, touch, register, look up.
class NumaSlabSource : public SlabSource {
 public:
  NumaSlabSource(NumaSlabParts parts, const NumaSlabOptions& options);

  Slab allocate(std::size_t bytes) override;
  void release(const Slab& slab) noexcept override;
  std::size_t page_bytes() const override { return page_bytes_; }
  std::size_t available_bytes() const override;

 private:
  void* allocate_pages(std::size_t bytes, std::string& why);
  void pin(Slab& slab);
  void verify(Slab& slab);

  NumaSlabParts parts_;
  bool strict_;
  DeviceLocality locality_;
  bool binds_ = true;  ///< false once the system has refused
  std::size_t page_bytes_;
};

}  // namespace deltaport::offload
