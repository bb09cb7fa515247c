// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/offload/offloader.hpp"

namespace deltaport::offload::test {

/// Slabs of 1 MiB.
inline PinnedPoolOptions small_slabs(std::size_t budget_bytes = 0) {
  PinnedPoolOptions options;
  options.slab_bytes = std::size_t{1} << 20;
  options.budget_bytes = budget_bytes;
  return options;
}

/// Everything of group "scope" may move.
inline OffloaderOptions movers(std::int64_t slots, double fraction = 1.0) {
  OffloaderOptions options;
  options.scopes = {"scope"};
  options.rules.slots = slots;
  options.rules.fraction = fraction;
  options.min_tensor_elements = 1;
  return options;
}

}  // namespace deltaport::offload::test
