// SPDX-License-Identifier: Apache-2.0
#include "config/convert.hpp"
#include "config/field.hpp"
#include "config/printing.hpp"
#include "deltaport/config/schema.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport {
namespace config {
namespace {

std::string default_text(const Field& field) {
  if (!field.derived_default.empty()) return std::string(field.derived_default);
  return scalar_text(default_of(field));
}

// "true or false" and the like, or the words that are allowed.
std::string type_text(const Field& field) {
  if (field.words.empty()) return std::string(expected(field.type));
  std::string text;
  for (const std::string_view word : field.words)
    text = text.empty() ? std::string(word) : concat(text, "|", word);
  return field.type == FieldType::words ? "list of " + text : text;
}

std::string facts(const Field& field) {
  const bool show_unit = !field.unit.empty() && field.type != FieldType::tokens;
  const std::string range = describe(field.range);
  return concat(type_text(field), show_unit ? concat(" (", field.unit, ")") : "", range.empty() ? "" : ", ",
                range, ", default ", default_text(field));
}

}  // namespace
}  // namespace config

std::string key_reference() {
  std::string text;
  std::string section = "?";
  for (const config::Field& field : config::fields()) {
    const std::string path(field.path);
    const std::string here = path.substr(0, std::min(path.rfind('.'), path.size()));
    const bool top = path.find('.') == std::string::npos;
    if (!top && here != section) text += "\n" + here + ": " + std::string(config::section_doc(here)) + "\n";
    section = here;
    text += "  --" + path + "\n      " + std::string(field.doc) + "\n      " + config::facts(field) + "\n";
    for (const config::ItemField& item : config::item_fields_of(path))
      text += "      " + std::string(item.name) + ": " + std::string(item.doc) +
              (item.type == config::FieldType::real ? ", > 0, default 1.0" : "") + "\n";
  }
  return text;
}

}  // namespace deltaport
