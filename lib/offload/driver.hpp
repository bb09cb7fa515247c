// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace deltaport::offload {

/// What is asked of an accelerator's driver. Builds for hosts have one that knows nothing and does nothing.
class Driver {
 public:
  Driver() = default;
  virtual ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Whether there is a device that pages can be registered for.
  virtual bool present() const = 0;
  /// The NUMA node of the device with this PCI address; -1 when it does not know.
  virtual int numa_node(const std::string& pci) const = 0;
  /// Locks whole pages for the device's copies, on every device of the process; says why not, or nothing when done.
  virtual std::string register_pages(void* data, std::size_t bytes) = 0;
  virtual void unregister_pages(void* data) noexcept = 0;
};

/// The driver of this build.
std::shared_ptr<Driver> make_driver();

}  // namespace deltaport::offload
