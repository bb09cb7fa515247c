// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/convert.hpp"

namespace deltaport::config {

using Words = std::span<const std::string_view>;

/// "a, b, c"
std::string list_words(Words words);

/// Conversions of one key's nodes: reports in one voice, at the node's place, under the key's name. Each
/// function returns nothing after it has reported.
class Converter {
 public:
  Converter(std::string name, Diagnostics& diagnostics) : name_(std::move(name)), diagnostics_(diagnostics) {}

  void fail(const Node& node, const std::string& message, const std::string& hint = {});
  void wrong_type(const Node& node, FieldType type, const std::string& hint = {});
  std::optional<Value> boolean(const Node& node);
  std::optional<std::int64_t> integer(const Node& node, FieldType type, const Range& range, Words words);
  std::optional<double> real(const Node& node, const Range& range);
  std::optional<std::string> text(const Node& node);
  std::optional<std::string> word(const Node& node, Words words);
  std::optional<Value> word_list(const Node& node, Words words);
  std::optional<Value> real_pair(const Node& node, const Range& range);
  std::optional<Value> sources(const Node& node, std::string_view list);

 private:
  bool is_scalar(const Node& node, FieldType type);
  bool is_unquoted(const Node& node, FieldType type);
  void bad_number(const Node& node, FieldType type, const std::string& problem, const Range& range);
  bool is_list(const Node& node, FieldType type);
  // One {path: ..., weight: ...} of a list of data sources.
  std::optional<DataSource> source(const Node& node, std::string_view list);

  std::string name_;
  Diagnostics& diagnostics_;
};

}  // namespace deltaport::config
