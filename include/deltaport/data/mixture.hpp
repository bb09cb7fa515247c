// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace deltaport {

/// Which of several sources each draw takes, by weight and without state. The weights become integer quotas
/// (largest remainder) of a cycle of 1024 draws, spread evenly: at each draw the source furthest behind its
/// share is taken. Over any whole cycle the shares are exact to 1/1024.
class Mixture {
 public:
  static constexpr std::int64_t cycle = 1024;

  struct Draw {
    std::int64_t source;
    std::int64_t index;  ///< how many draws of this source came before
  };

  /// Throws ConfigError for no weights, a weight that is not positive and finite, or one so small that its
  /// quota is 0.
  explicit Mixture(const std::vector<double>& weights);

  /// Draw number n >= 0.
  Draw draw(std::int64_t n) const;
  /// Draws of a source in one cycle.
  std::int64_t quota(std::int64_t source) const { return quotas_[static_cast<std::size_t>(source)]; }

 private:
  void arrange();

  std::vector<std::int64_t> quotas_;
  std::vector<Draw> table_;  // [cycle], index = rank inside the cycle
};

}  // namespace deltaport
