// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "config/field.hpp"

namespace deltaport::config {

/// A single value as a person writes it, without quotes: for ${...}.
std::string scalar_text(const Value& value);

/// A value as YAML on one line; text is double-quoted.
std::string yaml_text(const Value& value);

/// YAML of the keys for which `wanted` is true; `comment` gives what follows '#' (nothing: no comment).
std::string print_yaml(const RunConfig& config, const std::function<bool(const Field&)>& wanted,
                       const std::function<std::string(const Field&)>& comment);

}  // namespace deltaport::config
