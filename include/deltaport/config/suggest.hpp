// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltaport::config {

/// Damerau-Levenshtein distance (optimal string alignment): insertions, deletions, replacements, swaps of
/// neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The nearest candidate within distance 2 (1 for short words); else the shortest that begins with `word`, of four letters
/// at least; else empty. The earlier one wins ties.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace deltaport::config
