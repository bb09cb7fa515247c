// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/field.hpp"
#include "config/node.hpp"

namespace deltaport::config {

/// What one source says about one key.
struct Assignment {
  NodePtr node;
  std::string origin;  ///< as print() shows it
};

/// Key to its assignment; later layers replace earlier ones key by key.
using Layer = std::map<std::string, Assignment>;

/// Where the keys of a tree come from.
struct LayerSource {
  enum class Kind { preset, file, environment, command_line };
  Kind kind;
  std::string name;  ///< preset, file or argument
};

/// Walks a tree along the schema and writes its keys into `layer`. Reports unknown and misplaced keys and
/// sections that are no sections. `prefix` is where the tree hangs ("" for a file).
void flatten(const Node& node, const std::string& prefix, const Location& where, const LayerSource& source,
             Layer& layer, Diagnostics& diagnostics);

/// Reports an unknown key with the best guess at what was meant. `name` is its last part.
void report_unknown_key(const std::string& section, const std::string& name, const Location& where,
                        Diagnostics& diagnostics);

/// "'a' or 'b'", at most three of them.
std::string list_paths(const std::vector<std::string>& paths);

/// Reports the first byte of `text` that is no UTF-8 text or a control character; true when there is none.
bool check_text(const std::string& text, Location at, Diagnostics& diagnostics);

/// Reads --key=value, --key value and --set key=value.
void read_overrides(const std::vector<std::string>& overrides, Layer& layer, Diagnostics& diagnostics);

/// Reads DELTAPORT_SECTION__KEY variables and refuses other DELTAPORT_ names; notes the used ones.
void read_environment(const std::map<std::string, std::string>& environment, Layer& layer,
                      std::map<std::string, std::string>& used, Diagnostics& diagnostics);

/// Places after all files, so that reports are sorted by precedence.
constexpr int environment_order = 1 << 20;
constexpr int command_line_order = (1 << 20) + 1;
constexpr int default_order = (1 << 20) + 2;

}  // namespace deltaport::config
