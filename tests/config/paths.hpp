// SPDX-License-Identifier: Apache-2.0
// The schema's keys and sections, for tests that try all of them.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "config/field.hpp"
#include "support.hpp"

namespace deltaport::test {

/// "model.linear" is {"model", "linear"}; the empty path has no parts.
inline std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// "model" and "model.linear" for "model.linear.key_head_dim", and so on for all keys.
inline std::set<std::string> all_sections() {
  std::set<std::string> sections;
  for (const config::Field& field : config::fields())
    for (std::size_t dot = field.path.find('.'); dot != field.path.npos; dot = field.path.find('.', dot + 1))
      sections.emplace(field.path.substr(0, dot));
  return sections;
}

/// A line `rest` below the sections of a path, and those above it.
inline std::string below(const std::string& section, const std::string& rest) {
  std::string text, indent;
  for (const std::string& part : parts_of(section)) {
    text += indent + part + ":\n";
    indent += "  ";
  }
  return text + indent + rest + "\n";
}

/// The report of a text that must be refused as a whole configuration.
inline std::string refuse(const std::string& text) {
  try {
    parse_canonical(text, "run.yaml");
  } catch (const ConfigError& e) {
    return e.what();
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return "";
}

}  // namespace deltaport::test
