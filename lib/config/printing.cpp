// SPDX-License-Identifier: Apache-2.0
#include "config/printing.hpp"

#include "config/numbers.hpp"
#include "deltaport/config/load.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport::config {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\t')
      result += "\\t";
    else
      result += c;
  }
  return result + "\"";
}

struct OneLine {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return format_real(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const std::vector<std::string>& words) const {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return "[" + text + "]";
  }
  std::string operator()(const std::vector<double>& numbers) const {
    std::string text;
    for (const double number : numbers) text += (text.empty() ? "" : ", ") + format_real(number);
    return "[" + text + "]";
  }
  std::string operator()(const std::vector<DataSource>& sources) const {
    std::string text;
    for (const DataSource& source : sources) text += (text.empty() ? "" : ", ") + entry(source, true);
    return "[" + text + "]";
  }
  static std::string entry(const DataSource& source, bool weighted) {
    return "{path: " + quoted(source.path) + (weighted ? ", weight: " + format_real(source.weight) : "") +
           "}";
  }
};

// Words of an enumeration need no quotes; an absent text is null.
std::string field_text(const Field& field, const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && text->empty() && field.null == Null::means_default) return "null";
  return field.type == FieldType::word ? std::get<std::string>(value) : yaml_text(value);
}

std::string source_lines(const Field& field, const std::vector<DataSource>& sources,
                         const std::string& indent) {
  const bool weighted = item_fields_of(field.path).size() > 1;
  std::string text;
  for (const DataSource& source : sources) text += indent + "  - " + OneLine::entry(source, weighted) + "\n";
  return text;
}

}  // namespace

std::string scalar_text(const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : yaml_text(value);
}

std::string yaml_text(const Value& value) {
  return std::visit(OneLine{}, value);
}

std::string print_yaml(const RunConfig& config, const std::function<bool(const Field&)>& wanted,
                       const std::function<std::string(const Field&)>& comment) {
  std::string text;
  std::string section;  // printed so far, with its dots
  for (const Field& field : fields()) {
    if (!wanted(field)) continue;
    const std::string path(field.path);
    const std::size_t name_begin = path.rfind('.') + 1;
    std::size_t begin = 0;
    std::string indent;
    bool known = true;  // still inside the sections printed before
    for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
      known = known && section.starts_with(path.substr(0, dot + 1));
      if (!known) text += indent + path.substr(begin, dot - begin) + ":\n";
      begin = dot + 1;
      indent += "  ";
    }
    section = path.substr(0, name_begin);
    const Value value = field.binding.get(config);
    const auto* sources = std::get_if<std::vector<DataSource>>(&value);
    const bool block = sources != nullptr && !sources->empty();
    const std::string note = comment(field);
    text += concat(indent, path.substr(name_begin), ":", block ? "" : concat(" ", field_text(field, value)),
                   note.empty() ? "" : "  # ", note, "\n");
    if (block) text += source_lines(field, *sources, indent);
  }
  return text;
}

}  // namespace deltaport::config

namespace deltaport {

std::string canonical_yaml(const RunConfig& config) {
  return config::print_yaml(
      config, [](const config::Field&) { return true; }, [](const config::Field&) { return std::string(); });
}

std::string LoadedConfig::canonical_yaml() const {
  return deltaport::canonical_yaml(config);
}

std::string LoadedConfig::print(PrintKeys keys) const {
  const auto origin = [&](const config::Field& field) {
    const auto found = origins.find(std::string(field.path));
    return found == origins.end() ? std::string("default") : found->second;
  };
  const auto wanted = [&](const config::Field& field) {
    if (keys == PrintKeys::all || field.path == "version") return true;
    if (origin(field) == "default") return false;
    return !field.derived_default.empty() ||
           !config::same_value(field.binding.get(config), config::default_of(field));
  };
  return config::print_yaml(config, wanted, origin);
}

}  // namespace deltaport
