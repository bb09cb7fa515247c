// SPDX-License-Identifier: Apache-2.0
#include "deltaport/config/suggest.hpp"

#include <algorithm>

namespace deltaport::config {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<std::size_t> before(columns), above(columns), row(columns);
  for (std::size_t j = 0; j < columns; ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j < columns; ++j) {
      const std::size_t replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = 3;
  for (const std::string& candidate : candidates) {
    if (word.size() > candidate.size() + 2 || candidate.size() > word.size() + 2) continue;
    const std::size_t distance = edit_distance(word, candidate);
    const std::size_t allowed = candidate.size() < 4 ? 1 : 2;  // "lr" is not a misspelt "dir"
    if (distance > allowed || distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  if (best.empty() && word.size() >= 4) {
    for (const std::string& candidate : candidates)
      if (candidate.starts_with(word) && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  return best;
}

}  // namespace deltaport::config
