// SPDX-License-Identifier: Apache-2.0
#include "offload/numa_slab_source.hpp"

#include <unistd.h>

#include <algorithm>

#include "deltaport/core/error.hpp"
#include "deltaport/core/machine.hpp"

namespace deltaport::offload {
namespace {

constexpr const char* strict_hint =
    " (strict placement was asked for, offload.strict_numa; without it this is only reported)";

// Binding and looking up fail for the same reason where nothing is known.
void add_reason(std::string& why, const std::string& reason) {
  if (why.find(reason) == std::string::npos) why += (why.empty() ? "" : "; ") + reason;
}

DeviceLocality find(const NumaTopology& topology, const Driver& driver, const std::string& sysfs,
                    const std::string& pci) {
  LocalitySources sources{nullptr, sysfs};
  if (!pci.empty() && driver.present())
    sources.driver = [&, address = normalised_pci(pci)] { return driver.numa_node(address); };
  return locality_of(topology, pci, sources);
}

}  // namespace

NumaSlabSource::NumaSlabSource(NumaSlabParts parts, const NumaSlabOptions& options)
    : parts_(std::move(parts)),
      strict_(options.strict),
      locality_(find(parts_.topology, *parts_.driver, parts_.pci_root, options.pci)),
      page_bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
  // On a machine with one node there is nothing to know.
  const bool uncertain = !options.pci.empty() && !locality_.known && parts_.topology.nodes().size() != 1;
  DELTAPORT_VALIDATE(!strict_ || !uncertain, Error, locality_.why, strict_hint);
}

Slab NumaSlabSource::allocate(std::size_t bytes) {
  DELTAPORT_VALIDATE(bytes > 0 && bytes + page_bytes_ > bytes, OutOfMemory, "a slab of ", bytes, " bytes");
  Slab slab;
  slab.bytes = (bytes + page_bytes_ - 1) / page_bytes_ * page_bytes_;
  slab.placement.asked = locality_.nodes;
  slab.placement.why = locality_.why;
  slab.data = static_cast<std::byte*>(allocate_pages(slab.bytes, slab.placement.why));
  DELTAPORT_VALIDATE(slab.data != nullptr, OutOfMemory, "the system has no ", slab.bytes,
                     " bytes for a slab of host memory");
  try {
    pin(slab);
    verify(slab);
  } catch (...) {
    release(slab);
    throw;
  }
  return slab;
}

void* NumaSlabSource::allocate_pages(std::size_t bytes, std::string& why) {
  std::string refusal;
  if (void* data = parts_.pages->allocate_on(locality_.nodes, bytes, refusal)) {
    touch(data, bytes);
    return data;
  }
  binds_ = false;
  add_reason(why, refusal);
  void* data = parts_.pages->allocate_anywhere(bytes);
  if (data != nullptr) parts_.pages->touch_from(locality_.nodes, data, bytes);
  return data;
}

// Registered pages cannot move: they are in their place by now.
void NumaSlabSource::pin(Slab& slab) {
  if (!parts_.driver->present()) return;
  const std::string refusal = parts_.driver->register_pages(slab.data, slab.bytes);
  DELTAPORT_VALIDATE(refusal.empty(), OutOfMemory, "a slab of ", slab.bytes,
                     " bytes cannot be locked for the device: ", refusal);
  slab.pinned = true;
}

void NumaSlabSource::verify(Slab& slab) {
  PagePlacement& placement = slab.placement;
  std::string refusal;
  if (const auto found = parts_.pages->locate(slab.data, slab.bytes, refusal)) {
    placement.got = *found;
    placement.achieved = std::includes(placement.asked.begin(), placement.asked.end(), placement.got.begin(),
                                       placement.got.end());
    if (!placement.achieved)
      refusal = concat("pages are on ", node_list(placement.got), " instead of ", node_list(placement.asked));
  }
  add_reason(placement.why, refusal);
  DELTAPORT_VALIDATE(!strict_ || placement.achieved, Error, placement.why, strict_hint);
}

void NumaSlabSource::release(const Slab& slab) noexcept {
  if (slab.pinned) parts_.driver->unregister_pages(slab.data);
  parts_.pages->free(slab.data, slab.bytes);
}

std::size_t NumaSlabSource::available_bytes() const {
  std::size_t sum = 0;
  for (const int node : binds_ ? locality_.nodes : parts_.topology.allowed_nodes())
    sum += node_available_bytes(node, parts_.node_root);
  return sum;
}

DeviceLocality device_locality(const std::string& pci) {
  return find(NumaTopology::of_machine(), *make_driver(), LocalitySources{}.sysfs, pci);
}

std::unique_ptr<SlabSource> make_numa_slab_source(const NumaSlabOptions& options) {
  const NumaTopology topology = NumaTopology::of_machine();
  return std::make_unique<NumaSlabSource>(NumaSlabParts{topology, make_page_calls(topology), make_driver()},
                                          options);
}

}  // namespace deltaport::offload
