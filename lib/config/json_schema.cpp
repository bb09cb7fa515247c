// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "config/field.hpp"
#include "config/numbers.hpp"
#include "deltaport/config/schema.hpp"

namespace deltaport {
namespace config {
namespace {

using Json = nlohmann::ordered_json;

// What a YAML reader sees as a string, but the loader takes for a number.
constexpr const char* reference_pattern = R"(\$\{[^}]+\})";
constexpr const char* integer_pattern = R"(^[+-]?[0-9]+(_[0-9]+)+$|\$\{[^}]+\})";
constexpr const char* tokens_pattern =
    R"(^\+?([0-9]+(_[0-9]+)*)?\.?[0-9]*([kMGT]|[KMG]i)$|^\+?[0-9]+(_[0-9]+)+$|\$\{[^}]+\})";
constexpr const char* real_pattern = R"(^[+-]?([0-9]+(_[0-9]+)*)?\.?[0-9]*([eE][+-]?[0-9]+)?$|\$\{[^}]+\})";

Json number(double value) {
  if (value == static_cast<double>(static_cast<std::int64_t>(value))) return static_cast<std::int64_t>(value);
  return value;
}

void add_range(Json& json, const Range& range) {
  if (range.least > -std::numeric_limits<double>::infinity())
    json[range.least_excluded ? "exclusiveMinimum" : "minimum"] = number(range.least);
  if (range.most < std::numeric_limits<double>::infinity())
    json[range.most_excluded ? "exclusiveMaximum" : "maximum"] = number(range.most);
}

Json reference() {
  return {{"type", "string"}, {"pattern", reference_pattern}};
}

Json number_json(const char* type, const char* pattern, const Range& range) {
  Json json{{"type", {type, "string"}}, {"pattern", pattern}};
  add_range(json, range);
  return json;
}

Json words_json(std::span<const std::string_view> words, FieldType type) {
  Json allowed = Json::array();
  for (const std::string_view word : words) {
    if (type == FieldType::integer)
      allowed.push_back(parse_integer(word, Suffixes::none).value);
    else
      allowed.push_back(word);
  }
  return {{"anyOf", {Json{{"enum", allowed}}, reference()}}};
}

Json sources_json(std::string_view list) {
  Json properties = Json::object();
  for (const ItemField& item : item_fields_of(list)) {
    Json json = item.type == FieldType::text ? Json{{"type", "string"}, {"minLength", 1}}
                                             : number_json("number", real_pattern, item.range);
    json["description"] = item.doc;
    properties[std::string(item.name)] = json;
  }
  Json entry{{"type", "object"},
             {"additionalProperties", false},
             {"required", {"path"}},
             {"properties", properties}};
  return {{"type", "array"}, {"items", entry}};
}

Json type_json(const Field& field) {
  switch (field.type) {
    case FieldType::boolean:
      return {{"anyOf", {Json{{"type", "boolean"}}, reference()}}};
    case FieldType::integer:
      if (!field.words.empty()) return words_json(field.words, field.type);
      return number_json("integer", integer_pattern, field.range);
    case FieldType::tokens:
      return number_json("integer", tokens_pattern, field.range);
    case FieldType::real:
      return number_json("number", real_pattern, field.range);
    case FieldType::text:
      if (field.null == Null::means_default) return {{"type", {"string", "null"}}, {"minLength", 1}};
      return {{"type", "string"}, {"minLength", 1}};
    case FieldType::word:
      return words_json(field.words, field.type);
    case FieldType::words:
      return {{"type", "array"}, {"items", words_json(field.words, field.type)}, {"minItems", 1}};
    case FieldType::real_pair:
      return {{"type", "array"},
              {"items", number_json("number", real_pattern, field.range)},
              {"minItems", 2},
              {"maxItems", 2}};
    case FieldType::sources:
      break;
  }
  Json json = sources_json(field.path);
  if (field.null == Null::means_default) json["type"] = {"array", "null"};
  return json;
}

Json default_json(const Field& field) {
  if (!field.derived_default.empty()) return field.derived_default;
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::vector<DataSource>>)
          return Json::array();  // no data by default
        else
          return value;
      },
      default_of(field));
}

Json field_json(const Field& field) {
  Json json{{"description",
             std::string(field.doc) + (field.unit.empty() ? "" : " [" + std::string(field.unit) + "]")}};
  json.update(type_json(field));
  json["default"] = default_json(field);
  return json;
}

Json section_json(const std::string& section) {
  Json properties = Json::object();
  for (const std::string& name : children_of(section)) {
    const std::string path = section.empty() ? name : section + "." + name;
    const Field* field = find_field(path);
    properties[name] = field != nullptr ? field_json(*field) : section_json(path);
  }
  return {{"type", "object"},
          {"description", section_doc(section)},
          {"additionalProperties", false},
          {"properties", properties}};
}

}  // namespace
}  // namespace config

std::string json_schema() {
  config::Json json{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                    {"title", "deltaport configuration"}};
  json.update(config::section_json(""));
  return json.dump(2) + "\n";
}

}  // namespace deltaport
