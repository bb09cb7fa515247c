// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "config/converter.hpp"
#include "deltaport/config/suggest.hpp"

namespace deltaport::config {

bool Converter::is_list(const Node& node, FieldType type) {
  if (node.kind != Node::Kind::sequence) {
    wrong_type(node, type);
    return false;
  }
  return true;
}

std::optional<Value> Converter::word_list(const Node& node, Words words) {
  if (!is_list(node, FieldType::words)) return {};
  if (node.items.empty()) fail(node, "must not be empty");
  std::vector<std::string> result;
  for (const NodePtr& item : node.items)
    if (auto entry = word(*item, words)) result.push_back(std::move(*entry));
  if (result.empty() || result.size() != node.items.size()) return {};
  return result;
}

std::optional<Value> Converter::real_pair(const Node& node, const Range& range) {
  if (!is_list(node, FieldType::real_pair)) return {};
  if (node.items.size() != 2) {
    fail(node, "must have two entries, found " + std::to_string(node.items.size()));
    return {};
  }
  const auto first = real(*node.items[0], range);
  const auto second = real(*node.items[1], range);
  if (!first || !second) return {};
  return std::vector<double>{*first, *second};
}

std::optional<Value> Converter::sources(const Node& node, std::string_view list) {
  if (!is_list(node, FieldType::sources)) return {};
  std::vector<DataSource> result;
  bool good = true;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    Converter item(name_ + "[" + std::to_string(i) + "]", diagnostics_);
    if (auto entry = item.source(*node.items[i], list))
      result.push_back(std::move(*entry));
    else
      good = false;
  }
  if (!good) return {};
  return result;
}

std::optional<DataSource> Converter::source(const Node& node, std::string_view list) {
  if (node.kind != Node::Kind::map) {
    fail(node, "must be {path: PREFIX}, found " + describe(node));
    return {};
  }
  const std::vector<ItemField> known = item_fields_of(list);
  std::vector<std::string> names;
  for (const ItemField& item : known) names.emplace_back(item.name);
  DataSource result;
  bool good = true;
  bool has_path = false;
  for (const Node::Member& member : node.members) {
    const auto row = std::ranges::find(known, member.key, &ItemField::name);
    if (row == known.end()) {
      const std::string guess = nearest(member.key, names);
      diagnostics_.error(member.key_where, "unknown key '" + name_ + "." + member.key + "'",
                         guess.empty() ? "" : "did you mean '" + guess + "'?");
      good = false;
      continue;
    }
    Converter inner(name_ + "." + member.key, diagnostics_);
    if (row->type == FieldType::text) {
      has_path = true;
      const auto path = inner.text(*member.value);
      good = good && path.has_value();
      result.path = path.value_or("");
    } else {
      const auto weight = inner.real(*member.value, row->range);
      good = good && weight.has_value();
      result.weight = weight.value_or(1.0);
    }
  }
  if (good && !has_path) fail(node, "needs a 'path'");
  if (!good || !has_path) return {};
  return result;
}

}  // namespace deltaport::config
