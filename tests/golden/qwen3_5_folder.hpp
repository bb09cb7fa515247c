// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace deltaport::test {

/// The folder that qwen3_5.py wrote: the small committed one, or what GOLDEN_QWEN3_5 names.
inline std::filesystem::path golden_folder() {
  const char* const other = std::getenv("GOLDEN_QWEN3_5");
  return other != nullptr ? other : DELTAPORT_GOLDEN_DIR "/qwen3_5";
}

/// Not a number where any value is not, or where all that is expected is zero: below no limit.
struct Deviation {
  double rms = 0.0;      ///< root mean square of the differences over that of what is expected
  double largest = 0.0;  ///< largest difference over the largest expected value
  double worst() const { return std::max(rms, largest); }
};

template <class A, class E>
Deviation deviation(const std::vector<A>& computed, const std::vector<E>& expected) {
  EXPECT_EQ(computed.size(), expected.size());
  double square = 0.0, largest = 0.0, difference_square = 0.0, difference_largest = 0.0;
  for (std::size_t i = 0; i < std::min(computed.size(), expected.size()); ++i) {
    const auto value = static_cast<double>(expected[i]);
    const double difference = static_cast<double>(computed[i]) - value;
    square += value * value;
    largest = std::max(largest, std::abs(value));
    difference_square += difference * difference;
    difference_largest = std::max(difference_largest, std::abs(difference));
  }
  return {std::sqrt(difference_square / square), difference_largest / largest};
}

}  // namespace deltaport::test
