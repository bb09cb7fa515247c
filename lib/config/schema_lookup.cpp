// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "config/field.hpp"
#include "config/numbers.hpp"
#include "deltaport/config/schema.hpp"

namespace deltaport::config {

bool contains(const Range& range, double value) {
  return (range.least_excluded ? value > range.least : value >= range.least) &&
         (range.most_excluded ? value < range.most : value <= range.most);
}

namespace {
std::string bound(double value) {
  if (value == static_cast<double>(static_cast<std::int64_t>(value)))
    return std::to_string(static_cast<std::int64_t>(value));
  return format_real(value);
}
}  // namespace

std::string describe(const Range& range) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::string text;
  if (range.least == range.most) return bound(range.least);
  if (range.least > -infinity) text = (range.least_excluded ? "> " : ">= ") + bound(range.least);
  if (range.most < infinity)
    text +=
        std::string(text.empty() ? "" : " and ") + (range.most_excluded ? "< " : "<= ") + bound(range.most);
  return text;
}

const Field* find_field(std::string_view path) {
  for (const Field& field : fields())
    if (field.path == path) return &field;
  return nullptr;
}

bool is_section(std::string_view path) {
  if (path.empty()) return true;
  return std::ranges::any_of(fields(), [&](const Field& field) {
    return field.path.size() > path.size() && field.path.starts_with(path) && field.path[path.size()] == '.';
  });
}

std::vector<std::string> children_of(std::string_view section) {
  std::vector<std::string> names;
  for (const Field& field : fields()) {
    std::string_view rest = field.path;
    if (!section.empty()) {
      if (!rest.starts_with(section) || rest.size() <= section.size() || rest[section.size()] != '.')
        continue;
      rest.remove_prefix(section.size() + 1);
    }
    const std::string name(rest.substr(0, rest.find('.')));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string_view section_doc(std::string_view section) {
  constexpr std::pair<std::string_view, std::string_view> docs[] = {
      {"", "one training run of deltaport"},
      {"run", "name, place and seed of the run"},
      {"model", "dimensions of the hybrid language model"},
      {"model.linear", "GDN and GDN2 layers"},
      {"model.attention", "gated attention layers"},
      {"data", "token files and how they are cut into samples"},
      {"train", "steps and batches"},
      {"optimizer", "AdamW"},
      {"schedule", "learning rate over the steps"},
      {"recurrence", "kernels of GDN and GDN2"},
      {"attention", "kernels of attention layers"},
      {"recompute", "what backward computes again instead of forward saving it"},
      {"graph", "work captured once and launched as a whole"},
      {"offload", "saved tensors in host memory"},
      {"checkpoint", "saving and continuing"},
      {"eval", "evaluation on data.valid"},
      {"logging", "console and metrics files"}};
  for (const auto& [name, doc] : docs)
    if (name == section) return doc;
  return "";
}

std::vector<std::string> paths_ending_in(std::string_view name) {
  std::vector<std::string> paths;
  for (const Field& field : fields()) {
    const std::string_view path = field.path;
    for (std::size_t end = path.find('.');; end = path.find('.', end + 1)) {
      const std::string_view prefix = path.substr(0, end);
      const std::string_view leaf = prefix.substr(prefix.rfind('.') + 1);
      if (leaf == name && std::ranges::find(paths, prefix) == paths.end()) paths.emplace_back(prefix);
      if (end == std::string_view::npos) break;
    }
  }
  return paths;
}

std::vector<ItemField> item_fields_of(std::string_view list) {
  std::vector<ItemField> found;
  for (const ItemField& item : item_fields())
    if (item.list == list) found.push_back(item);
  return found;
}

Value default_of(const Field& field) {
  return field.binding.get(RunConfig{});
}

bool same_value(const Value& a, const Value& b) {
  if (a.index() != b.index()) return false;
  const auto* left = std::get_if<std::vector<DataSource>>(&a);
  if (left == nullptr) {
    return std::visit(
        [&](const auto& x) {
          using T = std::decay_t<decltype(x)>;
          if constexpr (std::is_same_v<T, std::vector<DataSource>>)
            return false;
          else
            return x == std::get<T>(b);
        },
        a);
  }
  return std::ranges::equal(*left, std::get<std::vector<DataSource>>(b), [](const auto& x, const auto& y) {
    return x.path == y.path && x.weight == y.weight;
  });
}

}  // namespace deltaport::config

namespace deltaport {
std::vector<std::string> key_paths() {
  std::vector<std::string> paths;
  for (const config::Field& field : config::fields()) paths.emplace_back(field.path);
  return paths;
}
}  // namespace deltaport
