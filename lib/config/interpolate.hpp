// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/layers.hpp"

namespace deltaport::config {

/// Replaces ${key}, ${env:NAME} and ${env:NAME:-text} in scalars, after all layers were merged.
class Interpolator {
 public:
  Interpolator(const Layer& layer, const std::map<std::string, std::string>& environment,
               Diagnostics& diagnostics);

  /// A copy of the node with every scalar expanded; null after an error. Looks no deeper than values of keys
  /// reach.
  NodePtr expand(const std::string& path, const Node& node, int depth = 0);

  /// The key as text: expanded if assigned, else its default. Empty after an error.
  std::optional<std::string> text_of(const std::string& path, const Location& where);

  const std::map<std::string, std::string>& used_environment() const { return used_; }

 private:
  std::optional<std::string> expand_text(const std::string& text, const Location& where);
  std::optional<std::string> reference(const std::string& name, const Location& where);
  std::optional<std::string> variable(const std::string& name, const Location& where);
  bool fail(const Location& where, const std::string& message, const std::string& hint = {});

  const Layer& layer_;
  const std::map<std::string, std::string>& environment_;
  Diagnostics& diagnostics_;
  std::vector<std::string> active_;  // keys being expanded, for cycles
  std::map<std::string, std::optional<std::string>> cache_;
  std::map<std::string, std::string> used_;
};

}  // namespace deltaport::config
