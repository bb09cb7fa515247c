// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "core/hwloc_topology.hpp"
#include "deltaport/offload/numa_topology.hpp"

namespace deltaport::offload {

struct NumaTopology::Impl {
  using Source = std::function<bool(hwloc_topology_t)>;  ///< says where the topology comes from
  explicit Impl(Source from);

  Source source;
  HwlocTopology topology;
};

}  // namespace deltaport::offload
