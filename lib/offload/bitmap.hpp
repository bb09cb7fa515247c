// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hwloc.h>

#include <vector>

namespace deltaport::offload {

/// Owns one set of numbers.
class Bitmap {
 public:
  explicit Bitmap(const std::vector<int>& indices = {}) : set_(hwloc_bitmap_alloc()) {
    for (const int i : indices) hwloc_bitmap_set(set_, static_cast<unsigned>(i));
  }
  ~Bitmap() { hwloc_bitmap_free(set_); }
  Bitmap(const Bitmap&) = delete;
  Bitmap& operator=(const Bitmap&) = delete;
  hwloc_bitmap_t get() const { return set_; }

 private:
  hwloc_bitmap_t set_;
};

}  // namespace deltaport::offload
