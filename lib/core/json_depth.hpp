// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace deltaport {

/// Levels of arrays and objects that a file from elsewhere may nest; what reads and prints JSON calls itself for each.
inline constexpr int most_json_levels = 100;

/// Whether text, taken for JSON, opens more levels than that. To be asked before parsing. No allocation, no error for what
/// is no JSON.
inline bool nests_too_deep(std::string_view text) {
  int level = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++level > most_json_levels) return true;
    } else if (c == ']' || c == '}') {
      --level;
    }
  }
  return false;
}

}  // namespace deltaport
