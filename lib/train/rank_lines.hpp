// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "deltaport/comm/communicator.hpp"

namespace deltaport::train {

/// The lines of all ranks on rank 0, nothing elsewhere. What all ranks say stands there once and as it is; before what
/// some say stands who: "rank 1: ", "ranks 1, 3, 4: ", "ranks 1, 3, 4 and 12 more: ". In the order in which rank 0,
/// then rank 1 and so on say them first. Collective.
std::vector<std::string> lines_of_ranks(const Communicator& communicator,
                                        const std::vector<std::string>& mine);

}  // namespace deltaport::train
