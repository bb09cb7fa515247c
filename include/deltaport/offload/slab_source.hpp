// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace deltaport::offload {

/// Where pages should be and where they are; nodes in the operating system's numbers, ascending.
struct PagePlacement {
  std::vector<int> asked;
  std::vector<int> got;   ///< nodes that hold pages; empty when the system does not tell
  bool achieved = false;  ///< every page was seen on an asked node
  std::string why;        ///< how `asked` was found, and every fallback taken, in words
};

/// One large piece of host memory; every page is there.
struct Slab {
  std::byte* data = nullptr;  ///< starts a page
  std::size_t bytes = 0;      ///< what was asked for, in whole pages: nothing is added
  bool pinned = false;        ///< registered with the device's driver
  PagePlacement placement;
};

/// Gives slabs to a pool. One thread at a time.
class SlabSource {
 public:
  SlabSource() = default;
  virtual ~SlabSource() = default;
  SlabSource(const SlabSource&) = delete;
  SlabSource& operator=(const SlabSource&) = delete;

  /// `bytes` are rounded up to pages. Throws OutOfMemory, or Error when a strict placement cannot be had.
  virtual Slab allocate(std::size_t bytes) = 0;
  virtual void release(const Slab& slab) noexcept = 0;
  virtual std::size_t page_bytes() const = 0;
  /// What the nodes that slabs come from have left; 0 when unknown.
  virtual std::size_t available_bytes() const = 0;
};

struct NumaSlabOptions {
  std::string pci;      ///< the device that copies from and to the slabs, "0000:1b:00.0"; empty: none
  bool strict = false;  ///< a placement that is not the asked one is an error, not a remark
};
/// Slabs of this machine near a device: bound to its NUMA nodes, touched, registered with the driver where the build
/// has one and a device is there, then looked up page by page. When the node is not known or not allowed, or when
/// the system refuses to bind (containers do), slabs come from where they can, and `placement.why` says so.
/// Throws ConfigError for a wrong `pci`, Error when `strict` cannot be met as far as is known by now.
std::unique_ptr<SlabSource> make_numa_slab_source(const NumaSlabOptions& options);

}  // namespace deltaport::offload
