// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include "config/layers.hpp"
#include "deltaport/config/load.hpp"
#include "deltaport/config/schema.hpp"
#include "deltaport/config/suggest.hpp"

namespace deltaport::config {
namespace {

constexpr std::string_view prefix = "DELTAPORT_";
// Switches of the program's surroundings (progress bar, launcher check, kernels of an instruction set, kernels that
// overlap); they say nothing about a run.
constexpr std::string_view switches[] = {"DELTAPORT_PROGRESS", "DELTAPORT_ALLOW_SINGLE_RANK",
                                         "DELTAPORT_HOST_ISA", "DELTAPORT_CUDA_OVERLAP"};

// A value given outside a file. Text needs no quotes there: the shell has taken them.
NodePtr value_node(const std::string& path, const std::string& text, const Location& where,
                   Diagnostics& diagnostics) {
  const Field* field = find_field(path);
  const bool is_text = field != nullptr && (field->type == FieldType::text || field->type == FieldType::word);
  const bool is_null = text.empty() || text == "null" || text == "~";
  const bool quoted = !text.empty() && (text[0] == '"' || text[0] == '\'');
  if (!is_text || quoted || (is_null && field->null == Null::means_default))
    return parse_inline_value(text, where, diagnostics);
  auto node = std::make_shared<Node>();
  node->kind = Node::Kind::scalar;
  node->style = ScalarStyle::untyped;
  node->text = text;
  node->where = where;
  return node;
}

void report_unknown_path(const std::string& path, const Location& where, Diagnostics& diagnostics) {
  const std::vector<std::string> elsewhere = paths_ending_in(path.substr(path.rfind('.') + 1));
  std::string hint;
  if (const std::string guess = nearest(path, key_paths()); !guess.empty())
    hint = "did you mean '" + guess + "'?";
  else if (!elsewhere.empty())
    hint = "the key is known as " + list_paths(elsewhere);
  else
    return report_unknown_key("", path, where, diagnostics);
  diagnostics.error(where, "unknown key '" + path + "'", hint);
}

void assign(const std::string& path, const std::string& text, const Location& where,
            const LayerSource& source, Layer& layer, Diagnostics& diagnostics) {
  if (!check_text(text, where, diagnostics)) return;
  if (find_field(path) == nullptr && (path.empty() || !is_section(path))) {
    report_unknown_path(path, where, diagnostics);
    return;
  }
  if (const NodePtr node = value_node(path, text, where, diagnostics))
    flatten(*node, path, where, source, layer, diagnostics);
}

Location argument_place(const std::string& name) {
  return {"<command line>:" + name, command_line_order, 0, 0, 1};
}

void read_assignment(const std::string& name, const std::string& key, const std::string& value, Layer& layer,
                     Diagnostics& diagnostics) {
  assign(key, value, argument_place(name), {LayerSource::Kind::command_line, name}, layer, diagnostics);
}

void read_set(const std::string& assignment, Layer& layer, Diagnostics& diagnostics) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos) {
    diagnostics.error(argument_place("--set " + assignment), "needs KEY=VALUE");
    return;
  }
  const std::string key = assignment.substr(0, equals);
  read_assignment("--set " + key, key, assignment.substr(equals + 1), layer, diagnostics);
}

std::string variable_of(std::string_view path) {
  std::string name(prefix);
  for (const char c : path) {
    if (c == '.')
      name += "__";
    else
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

void report_unknown_variable(const std::string& name, const Location& where, Diagnostics& diagnostics) {
  std::vector<std::string> known;
  for (const Field& field : fields()) known.push_back(variable_of(field.path));
  const std::string guess = nearest(name, known);
  diagnostics.error(where, "unknown environment variable '" + name + "'",
                    guess.empty()
                        ? "names are " + std::string(prefix) + " and the key, with '__' for '.'; unset it"
                        : "did you mean '" + guess + "'?");
}

}  // namespace

void read_overrides(const std::vector<std::string>& overrides, Layer& layer, Diagnostics& diagnostics) {
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    const std::string& argument = overrides[i];
    if (argument.size() < 3 || !argument.starts_with("--")) {
      diagnostics.error(argument_place(argument), "unexpected argument",
                        "overrides are written --section.key=value");
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < overrides.size() && !overrides[i + 1].starts_with("--")) {
      value = overrides[++i];
    } else {
      const std::string key = name.substr(2);
      if (find_field(key) == nullptr && key != "set")
        assign(key, "", argument_place(name), {LayerSource::Kind::command_line, name}, layer, diagnostics);
      else
        diagnostics.error(argument_place(name), "needs a value", "write " + name + "=VALUE");
      continue;
    }
    if (name == "--set")
      read_set(value, layer, diagnostics);
    else
      read_assignment(name, name.substr(2), value, layer, diagnostics);
  }
}

void read_environment(const std::map<std::string, std::string>& environment, Layer& layer,
                      std::map<std::string, std::string>& used, Diagnostics& diagnostics) {
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(prefix)) continue;
    if (std::find(std::begin(switches), std::end(switches), name) != std::end(switches)) continue;
    const Location where{"<environment>:" + name, environment_order, 0, 0, 1};
    const Field* found = nullptr;
    for (const Field& field : fields())
      if (variable_of(field.path) == name) found = &field;
    if (found == nullptr) {
      report_unknown_variable(name, where, diagnostics);
      continue;
    }
    used[name] = value;
    assign(std::string(found->path), value, where, {LayerSource::Kind::environment, name}, layer,
           diagnostics);
  }
}

}  // namespace deltaport::config

namespace deltaport {

ConfigArguments split_arguments(const std::vector<std::string>& arguments) {
  ConfigArguments result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("-") || argument == "-") {
      result.files.push_back(argument);
      continue;
    }
    result.overrides.push_back(argument);
    // "--key value": the value belongs to the key, however much it looks like a file.
    const bool separate = argument.starts_with("--") && argument.find('=') == std::string::npos;
    if (separate && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--"))
      result.overrides.push_back(arguments[++i]);
  }
  return result;
}

}  // namespace deltaport
