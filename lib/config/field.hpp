// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "deltaport/config/run_config.hpp"

namespace deltaport::config {

/// The value of one key in the types that YAML has. Enumerations are their words.
using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>,
                           std::vector<double>, std::vector<DataSource>>;

enum class FieldType { boolean, integer, tokens, real, text, word, words, real_pair, sources };

/// Allowed numbers. Ends are included unless said otherwise.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool least_excluded = false;
  bool most_excluded = false;
};
constexpr Range any_number() {
  return {};
}
constexpr Range at_least(double least) {
  return {.least = least};
}
constexpr Range above(double least) {
  return {.least = least, .least_excluded = true};
}
constexpr Range between(double least, double most) {
  return {.least = least, .most = most};
}
constexpr Range from_below(double least, double most) {
  return {.least = least, .most = most, .most_excluded = true};
}
bool contains(const Range& range, double value);
/// ">= 1", "> 0 and <= 1"; empty for any number.
std::string describe(const Range& range);

/// May the key differ between a run and its continuation?
enum class OnResume { same, free };
/// May the key be null (meaning: default)?
enum class Null { refused, means_default };

/// Reads and writes one field of RunConfig.
struct Binding {
  Value (*get)(const RunConfig&);
  void (*set)(RunConfig&, const Value&);
};

/// One key. Parser, checks, help, JSON schema and printing all come from these rows; the default is what
/// RunConfig's initialisers say, unless `derived_default` computes it from other keys.
struct Field {
  std::string_view path;
  FieldType type;
  std::string_view unit;
  Range range;
  std::span<const std::string_view> words;  ///< allowed words, or allowed integers; empty: any
  OnResume on_resume;
  std::string_view doc;
  Binding binding;
  std::string_view derived_default = {};
  Null null = Null::refused;
};

/// A key inside the items of a list of data sources.
struct ItemField {
  std::string_view list;  ///< path of the list
  std::string_view name;
  FieldType type;  ///< text (required) or real
  Range range;
  std::string_view doc;
};

std::span<const Field> fields();
std::span<const ItemField> item_fields();

const Field* find_field(std::string_view path);
/// Is this path the inner part of a longer one ("model", "model.linear")? The empty path is the root.
bool is_section(std::string_view path);
/// Names directly below a section, in schema order.
std::vector<std::string> children_of(std::string_view section);
/// One line about a section.
std::string_view section_doc(std::string_view section);
/// Full paths whose last part, or whole section name, is `name`.
std::vector<std::string> paths_ending_in(std::string_view name);
std::vector<ItemField> item_fields_of(std::string_view list);

/// The built-in value of a key.
Value default_of(const Field& field);
bool same_value(const Value& a, const Value& b);

}  // namespace deltaport::config
