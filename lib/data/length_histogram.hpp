// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "deltaport/data/token_file.hpp"

namespace deltaport {

/// Document lengths in tokens, counted in bins 0, 1, 2 to 3, 4 to 7, ... from the first to the last that is
/// used.
struct LengthHistogram {
  struct Bin {
    std::int64_t first;
    std::int64_t last;
    std::int64_t documents;
  };
  std::vector<Bin> bins;
  std::int64_t shortest = 0;
  std::int64_t longest = 0;
  double mean = 0.0;
};

LengthHistogram length_histogram(const TokenFile& file);

}  // namespace deltaport
