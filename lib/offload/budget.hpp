// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "deltaport/core/machine.hpp"
#include "deltaport/offload/slab_source.hpp"

namespace deltaport::offload {

/// Bytes of slabs that a pool may take. Locked memory cannot be swapped: what exceeds the control group or the node ends
/// in the process being killed, so a budget that cannot be met is refused while that is still a message.
/// `asked` 0: nine tenths of what is left, or no bound where nothing tells. Throws OutOfMemory.
std::size_t budget_of(std::size_t asked, const CgroupMemory& group, std::size_t nodes_available,
                      const PagePlacement& placement);

}  // namespace deltaport::offload
