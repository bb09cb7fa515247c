// SPDX-License-Identifier: Apache-2.0
#include "config/interpolate.hpp"

#include <algorithm>

#include "config/printing.hpp"
#include "deltaport/config/schema.hpp"
#include "deltaport/config/suggest.hpp"

namespace deltaport::config {
namespace {
constexpr std::size_t max_text = 1 << 16;  // a chain of references must not grow without bound
constexpr int max_depth = 2;               // scalars in maps in a list; aliases could make deeper trees huge
}  // namespace

Interpolator::Interpolator(const Layer& layer, const std::map<std::string, std::string>& environment,
                           Diagnostics& diagnostics)
    : layer_(layer), environment_(environment), diagnostics_(diagnostics) {}

bool Interpolator::fail(const Location& where, const std::string& message, const std::string& hint) {
  // A default made of other keys fails only when one of those does, and that one is reported at its own
  // place.
  if (where.source_order != default_order) diagnostics_.error(where, message, hint);
  return false;
}

NodePtr Interpolator::expand(const std::string& path, const Node& node, int depth) {
  auto result = std::make_shared<Node>(node);
  if (depth > max_depth) return result;
  if (node.kind == Node::Kind::scalar && node.text.find("${") != std::string::npos) {
    active_.push_back(path);
    const std::optional<std::string> text = expand_text(node.text, node.where);
    active_.pop_back();
    if (!text) return nullptr;
    result->text = *text;
    result->style = ScalarStyle::untyped;
  }
  for (NodePtr& item : result->items) {
    item = expand(path, *item, depth + 1);
    if (!item) return nullptr;
  }
  for (Node::Member& member : result->members) {
    member.value = expand(path, *member.value, depth + 1);
    if (!member.value) return nullptr;
  }
  return result;
}

std::optional<std::string> Interpolator::text_of(const std::string& path, const Location& where) {
  const Field& field = *find_field(path);
  const auto found = layer_.find(path);
  const bool assigned = found != layer_.end() && found->second.node->kind != Node::Kind::null;
  if (!assigned && field.derived_default.empty()) return scalar_text(default_of(field));
  if (assigned && found->second.node->kind != Node::Kind::scalar) {
    fail(where, "'${" + path + "}' is " + describe(*found->second.node) + ", not a single value");
    return std::nullopt;
  }
  if (std::ranges::find(active_, path) != active_.end()) {
    std::string cycle;
    for (auto it = std::ranges::find(active_, path); it != active_.end(); ++it) cycle += *it + " -> ";
    fail(where, "${...} refers to itself: " + cycle + path);
    return std::nullopt;
  }
  if (const auto known = cache_.find(path); known != cache_.end()) return known->second;
  active_.push_back(path);
  const std::string text = assigned ? found->second.node->text : std::string(field.derived_default);
  auto result = expand_text(text, assigned ? found->second.node->where : where);
  active_.pop_back();
  cache_[path] = result;
  return result;
}

std::optional<std::string> Interpolator::expand_text(const std::string& text, const Location& where) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "${") != 0) {
      result += text[i++];
      continue;
    }
    const std::size_t end = text.find('}', i);
    if (end == std::string::npos) {
      fail(where, "'${' without '}'");
      return std::nullopt;
    }
    const std::string name = text.substr(i + 2, end - i - 2);
    const auto value = name.starts_with("env:") ? variable(name.substr(4), where) : reference(name, where);
    if (!value) return std::nullopt;
    result += *value;
    if (result.size() > max_text) {
      fail(where, "longer than 64 KiB after ${...} was replaced");
      return std::nullopt;
    }
    i = end + 1;
  }
  return result;
}

std::optional<std::string> Interpolator::reference(const std::string& name, const Location& where) {
  const Field* field = find_field(name);
  if (field == nullptr) {
    const std::string guess = nearest(name, key_paths());
    const std::string reason = !name.empty() && is_section(name) ? "is a section" : "is not a key";
    fail(where, "'${" + name + "}' " + reason, guess.empty() ? "" : "did you mean '${" + guess + "}'?");
    return std::nullopt;
  }
  if (field->type == FieldType::words || field->type == FieldType::sources ||
      field->type == FieldType::real_pair) {
    fail(where, "'${" + name + "}' is a list, not a single value");
    return std::nullopt;
  }
  return text_of(name, where);
}

std::optional<std::string> Interpolator::variable(const std::string& name, const Location& where) {
  const std::size_t split = name.find(":-");
  const std::string variable_name = name.substr(0, split);
  const auto found = environment_.find(variable_name);
  // As in the shell: the text after ":-" also stands in for an empty value.
  if (found != environment_.end() && (!found->second.empty() || split == std::string::npos)) {
    used_[variable_name] = found->second;
    return found->second;
  }
  if (split != std::string::npos) return name.substr(split + 2);
  fail(where, "environment variable '" + variable_name + "' is not set",
       "give a value to use instead: ${env:" + variable_name + ":-text}");
  return std::nullopt;
}

}  // namespace deltaport::config
