// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "deltaport/checkpoint/safetensors.hpp"

namespace deltaport {

/// How many values are no finite numbers.
struct NonFinite {
  std::int64_t nans = 0, infinities = 0;

  bool any() const { return nans > 0 || infinities > 0; }
  NonFinite& operator+=(const NonFinite& more);
  /// "of its values 3 are NaN and 1 is infinite"
  std::string str() const;
};

/// Counts in whole elements as they stand in a file, at any alignment. Types other than F16, BF16, F32 and
/// F64 have none.
NonFinite count_non_finite(FileDtype dtype, const std::byte* raw, std::uint64_t bytes);

}  // namespace deltaport
