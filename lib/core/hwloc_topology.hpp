// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hwloc.h>

#include <vector>

namespace deltaport {

/// Owns one loaded topology; false when it could not be loaded.
class HwlocTopology {
 public:
  HwlocTopology() : HwlocTopology([](hwloc_topology_t) { return true; }) {}
  /// `configure(topology)` sets filters, flags and the source before the load; false means it could not.
  template <class Configure>
  explicit HwlocTopology(const Configure& configure) {
    loaded_ =
        hwloc_topology_init(&topology_) == 0 && configure(topology_) && hwloc_topology_load(topology_) == 0;
  }
  ~HwlocTopology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  HwlocTopology(const HwlocTopology&) = delete;
  HwlocTopology& operator=(const HwlocTopology&) = delete;
  explicit operator bool() const { return loaded_; }
  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

/// The numbers in a set, ascending.
inline std::vector<int> indices_of(hwloc_const_bitmap_t set) {
  std::vector<int> indices;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) indices.push_back(i);
  return indices;
}

}  // namespace deltaport
