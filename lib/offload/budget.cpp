// SPDX-License-Identifier: Apache-2.0
#include "offload/budget.hpp"

#include <algorithm>
#include <limits>

#include "deltaport/core/error.hpp"
#include "deltaport/offload/numa_topology.hpp"

namespace deltaport::offload {

std::size_t budget_of(std::size_t asked, const CgroupMemory& group, std::size_t nodes_available,
                      const PagePlacement& placement) {
  constexpr const char* advice =
      ". Ask for less, keep more tensors on the device (a smaller offloaded fraction), or give the job more "
      "memory";
  const bool limited = group.limit_bytes > 0;
  DELTAPORT_VALIDATE(!limited || asked <= group.available_bytes, OutOfMemory, "pinned pool: a budget of ",
                     asked, " bytes is more than the ", group.available_bytes,
                     " bytes that the control group leaves (", group.file, "; lowest limit ",
                     group.limit_bytes, ")", advice);
  const bool counted = nodes_available > 0;
  DELTAPORT_VALIDATE(!counted || asked <= nodes_available, OutOfMemory, "pinned pool: a budget of ", asked,
                     " bytes is more than the ", nodes_available, " bytes that ", node_list(placement.asked),
                     placement.asked.size() == 1 ? " has" : " have", " left", advice);
  if (asked > 0) return asked;
  std::size_t left = std::numeric_limits<std::size_t>::max();
  if (limited) left = group.available_bytes;
  if (counted) left = std::min(left, nodes_available);
  return limited || counted ? left / 10 * 9 : left;
}

}  // namespace deltaport::offload
