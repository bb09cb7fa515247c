// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/data/sample_source.hpp"

namespace deltaport {

/// 64 bits of XXH3 over what a pass takes from a batch: token ids, labels and boundaries, with their counts. `before`
/// is the hash of what came earlier, so that the hash of a step covers its batches in order.
std::uint64_t batch_hash(const Batch& batch, std::uint64_t before = 0);

}  // namespace deltaport
