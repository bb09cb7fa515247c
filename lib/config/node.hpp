// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/diagnostics.hpp"

namespace deltaport::config {

/// How a scalar was written; it decides which types it may become.
enum class ScalarStyle {
  plain,   ///< 12 is a number, true a boolean, the rest text
  quoted,  ///< text only
  untyped  ///< an argument, a variable or the result of ${...}: whatever the key wants
};

/// One YAML node with its place. Shared, so that an alias costs nothing.
struct Node {
  enum class Kind { null, scalar, sequence, map };
  struct Member;

  Kind kind = Kind::null;
  ScalarStyle style = ScalarStyle::plain;
  std::string text;
  Location where;
  std::vector<std::shared_ptr<Node>> items;
  std::vector<Member> members;
};
using NodePtr = std::shared_ptr<Node>;

struct Node::Member {
  std::string key;
  Location key_where;
  NodePtr value;
};

/// "a list", "the number 12", "the text \"abc\"": for messages.
std::string describe(const Node& node);

/// Parses one YAML document. Reports syntax errors, duplicate keys, merge keys, tags, trailing documents and
/// bytes that are no text. Returns null when nothing usable was found (also for an empty text, without an
/// error). `name` is the source's name and must have been added to the diagnostics.
NodePtr parse_yaml(const std::string& text, const std::string& name, Diagnostics& diagnostics);

/// Parses the value of an override or a variable; every node gets the place `where`.
NodePtr parse_inline_value(const std::string& text, const Location& where, Diagnostics& diagnostics);

/// Reads a whole file. Reports a missing, unreadable or too large one, and returns false.
bool read_file(const std::string& path, std::string& text, Diagnostics& diagnostics);

}  // namespace deltaport::config
