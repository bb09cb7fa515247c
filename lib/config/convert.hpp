// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "config/field.hpp"
#include "config/node.hpp"

namespace deltaport::config {

/// The value of a key from its expanded node, with type, range and words checked. Null nodes are the caller's
/// business. Reports every problem; nothing is returned after one.
std::optional<Value> convert(const Field& field, const Node& node, Diagnostics& diagnostics);

/// Problems of a value that is already typed, e.g. of a configuration made in code; empty when fine.
std::string problem_of(const Field& field, const Value& value);

/// "an integer", "true or false", ...
std::string_view expected(FieldType type);

}  // namespace deltaport::config
