// SPDX-License-Identifier: Apache-2.0
#include "config/layers.hpp"

#include <algorithm>

#include "deltaport/config/suggest.hpp"

namespace deltaport::config {
namespace {

std::string join(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const Field& field : fields()) {
    const std::string path(field.path);
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find('.', begin), path.size());
      names.push_back(path.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return names;
}

std::string origin_text(const LayerSource& source, const Location& where) {
  switch (source.kind) {
    case LayerSource::Kind::preset:
      return "preset " + source.name;
    case LayerSource::Kind::environment:
      return "environment";
    case LayerSource::Kind::command_line:
      return source.name;
    case LayerSource::Kind::file:
      break;
  }
  return where.source + ":" + std::to_string(where.line);
}

}  // namespace

std::string list_paths(const std::vector<std::string>& paths) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(paths.size(), 3); ++i)
    text += std::string(i == 0 ? "" : " or ") + "'" + paths[i] + "'";
  return text;
}

void report_unknown_key(const std::string& section, const std::string& name, const Location& where,
                        Diagnostics& diagnostics) {
  const std::string message = "unknown key '" + join(section, name) + "'";
  const std::vector<std::string> elsewhere = paths_ending_in(name);
  std::string hint;
  if (!elsewhere.empty()) {
    hint = "'" + name + "' is known as " + list_paths(elsewhere);
  } else if (const std::string sibling = nearest(name, children_of(section)); !sibling.empty()) {
    hint = "did you mean '" + sibling + "'?";
  } else if (const std::string far = nearest(name, all_names()); !far.empty()) {
    hint = "did you mean " + list_paths(paths_ending_in(far)) + "?";
  } else if (where.line > 0 && name.find('.') != std::string::npos) {
    hint = "sections are nested in files: one key per level";
  }
  diagnostics.error(where, message, hint);
}

void flatten(const Node& node, const std::string& prefix, const Location& where, const LayerSource& source,
             Layer& layer, Diagnostics& diagnostics) {
  if (find_field(prefix) != nullptr) {
    layer[prefix] = {std::make_shared<Node>(node), origin_text(source, where)};
    return;
  }
  if (node.kind != Node::Kind::map) {
    const std::string what =
        prefix.empty() ? "the file must be a mapping of sections" : "'" + prefix + "' is a section";
    const bool empty = node.kind == Node::Kind::null;
    diagnostics.error(node.where, what + ", found " + describe(node),
                      empty ? "write keys below it, or remove it" : "write its keys below it, indented");
    return;
  }
  for (const Node::Member& member : node.members) {
    if (diagnostics.full()) return;
    const std::string path = join(prefix, member.key);
    if (member.key.find('.') == std::string::npos && (find_field(path) != nullptr || is_section(path)))
      flatten(*member.value, path, member.key_where, source, layer, diagnostics);
    else
      report_unknown_key(prefix, member.key, member.key_where, diagnostics);
  }
}

}  // namespace deltaport::config
