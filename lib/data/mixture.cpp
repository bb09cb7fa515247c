// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "deltaport/core/error.hpp"

namespace deltaport {

Mixture::Mixture(const std::vector<double>& weights) {
  DELTAPORT_VALIDATE(!weights.empty(), ConfigError, "a mixture needs at least one source");
  for (const double w : weights)
    DELTAPORT_VALIDATE(std::isfinite(w) && w > 0.0, ConfigError, "source weight ", w,
                       "; expected a positive number (leave out sources that are not wanted)");
  const double largest =
      *std::max_element(weights.begin(), weights.end());  // the sum of weights may overflow
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0,
                                     [=](double s, double w) { return s + w / largest; });
  std::vector<double> remainders;
  std::int64_t given = 0;
  for (const double w : weights) {
    const double exact = static_cast<double>(cycle) * (w / largest / sum);
    quotas_.push_back(static_cast<std::int64_t>(exact));
    remainders.push_back(exact - std::floor(exact));
    given += quotas_.back();
  }
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; given < cycle; i = (i + 1) % order.size(), ++given) ++quotas_[order[i]];
  for (std::size_t i = 0; i < weights.size(); ++i)
    DELTAPORT_VALIDATE(
        quotas_[i] > 0, ConfigError, "source weight ", weights[i], " is less than about 1/", cycle,
        " of the sum of weights, so this source would never be drawn; raise it or leave it out");
  arrange();
}

void Mixture::arrange() {
  std::vector<std::int64_t> taken(quotas_.size(), 0);
  for (std::int64_t t = 1; t <= cycle; ++t) {
    std::size_t best = 0;
    std::int64_t most_behind = -cycle * cycle;
    for (std::size_t i = 0; i < quotas_.size(); ++i) {
      const std::int64_t behind = quotas_[i] * t - cycle * taken[i];
      if (taken[i] < quotas_[i] && behind > most_behind) {
        most_behind = behind;
        best = i;
      }
    }
    table_.push_back({static_cast<std::int64_t>(best), taken[best]++});
  }
}

Mixture::Draw Mixture::draw(std::int64_t n) const {
  const Draw& slot = table_[static_cast<std::size_t>(n % cycle)];
  return {slot.source, n / cycle * quota(slot.source) + slot.index};
}

}  // namespace deltaport
