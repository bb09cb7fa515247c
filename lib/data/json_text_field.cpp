// SPDX-License-Identifier: Apache-2.0
#include "data/json_text_field.hpp"

#include "data/json_scanner.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

const char* name_of(JsonKind kind) {
  switch (kind) {
    case JsonKind::object:
      return "an object";
    case JsonKind::array:
      return "an array";
    case JsonKind::string:
      return "a string";
    case JsonKind::number:
      return "a number";
    case JsonKind::boolean:
      return "a boolean";
    case JsonKind::null:
      return "null";
  }
  return "";
}

std::string take_field(JsonScanner& scanner, std::string_view field, std::string_view& text) {
  bool found = false;
  scanner.begin_object();
  for (std::string_view key; scanner.next_key(key);) {
    const JsonKind kind = scanner.peek();
    if (key != field) {
      scanner.skip_value();
      continue;
    }
    if (kind != JsonKind::string)
      return concat("the field \"", field, "\" is ", name_of(kind), "; expected a string");
    if (found) return concat("the field \"", field, "\" comes twice");
    text = scanner.string();
    found = true;
  }
  scanner.expect_end();
  return found ? "" : concat("no field \"", field, "\"; choose the one that holds the text (--text-field)");
}

}  // namespace

std::string json_text_field(std::span<char> line, std::string_view field, std::string_view& text) {
  try {
    JsonScanner scanner(line);
    const JsonKind kind = scanner.peek();
    if (kind == JsonKind::object) return take_field(scanner, field, text);
    scanner.skip_value();
    scanner.expect_end();
    return concat("expected an object with the field \"", field, "\", found ", name_of(kind));
  } catch (const JsonScanner::Invalid& e) {
    return concat("column ", e.column, ": invalid JSON: ", e.what);
  }
}

}  // namespace deltaport
