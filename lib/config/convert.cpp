// SPDX-License-Identifier: Apache-2.0
#include "config/convert.hpp"

#include <algorithm>

#include "config/numbers.hpp"
#include "config/suggest.hpp"

namespace deltaport::config {
namespace {

using Words = std::span<const std::string_view>;

std::string list_words(Words words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

/// One conversion: remembers for which key, and reports in one voice.
class Converter {
 public:
  Converter(std::string name, Diagnostics& diagnostics) : name_(std::move(name)), diagnostics_(diagnostics) {}

  void fail(const Node& node, const std::string& message, const std::string& hint = {}) {
    diagnostics_.error(node.where, "'" + name_ + "' " + message, hint);
  }
  void wrong_type(const Node& node, FieldType type, const std::string& hint = {}) {
    fail(node, "must be " + std::string(expected(type)) + ", found " + describe(node), hint);
  }

  bool is_scalar(const Node& node, FieldType type) {
    if (node.kind == Node::Kind::scalar) return true;
    wrong_type(node, type, node.kind == Node::Kind::null ? "give a value, or remove the key" : "");
    return false;
  }

  std::optional<Value> boolean(const Node& node) {
    if (!is_scalar(node, FieldType::boolean)) return {};
    if (node.style != ScalarStyle::quoted && node.text == "true") return true;
    if (node.style != ScalarStyle::quoted && node.text == "false") return false;
    std::string lower = node.text;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool yes = lower == "yes" || lower == "on" || lower == "true" || lower == "y" || lower == "1";
    const bool no = lower == "no" || lower == "off" || lower == "false" || lower == "n" || lower == "0";
    wrong_type(node, FieldType::boolean, yes ? "write true" : no ? "write false" : "");
    return {};
  }

  bool is_unquoted(const Node& node, FieldType type) {
    if (!is_scalar(node, type)) return false;
    if (node.style != ScalarStyle::quoted) return true;
    wrong_type(node, type, "remove the quotes");
    return false;
  }

  void bad_number(const Node& node, FieldType type, const std::string& problem, const Range& range) {
    if (problem == "not a number")
      wrong_type(node, type);
    else if (problem == "must be a whole number")
      fail(node, "must be a whole number, found '" + node.text + "'");
    else
      fail(node, "= " + node.text + ": " + problem, problem == "too large" ? describe(range) : "");
  }

  std::optional<std::int64_t> integer(const Node& node, FieldType type, const Range& range, Words words) {
    if (!is_unquoted(node, type)) return {};
    const auto number =
        parse_integer(node.text, type == FieldType::tokens ? Suffixes::counts : Suffixes::none);
    if (!number.problem.empty()) {
      bad_number(node, type, number.problem, range);
      return {};
    }
    if (!words.empty() && std::ranges::find(words, std::to_string(number.value)) == words.end()) {
      fail(node, "must be one of " + list_words(words) + ", found " + node.text);
      return {};
    }
    if (contains(range, static_cast<double>(number.value))) return number.value;
    fail(node, "must be " + describe(range) + ", found " + node.text);
    return {};
  }

  std::optional<double> real(const Node& node, const Range& range) {
    if (!is_unquoted(node, FieldType::real)) return {};
    const auto number = parse_real(node.text);
    if (!number.problem.empty())
      bad_number(node, FieldType::real, number.problem, range);
    else if (!contains(range, number.value))
      fail(node, "must be " + describe(range) + ", found " + node.text);
    else
      return number.value;
    return {};
  }

  std::optional<std::string> text(const Node& node) {
    if (!is_scalar(node, FieldType::text)) return {};
    if (node.style == ScalarStyle::plain && (looks_like_number(node.text) || looks_like_boolean(node.text))) {
      wrong_type(node, FieldType::text, "quote it: \"" + node.text + "\"");
      return {};
    }
    if (node.text.empty()) {
      fail(node, "must not be empty");
      return {};
    }
    if (node.text.find('\n') != std::string::npos) {
      fail(node, "must be a single line");
      return {};
    }
    return node.text;
  }

  std::optional<std::string> word(const Node& node, Words words) {
    if (node.kind != Node::Kind::scalar) {
      wrong_type(node, FieldType::word, "one of " + list_words(words));
      return {};
    }
    if (std::ranges::find(words, node.text) != words.end()) return node.text;
    const std::vector<std::string> candidates(words.begin(), words.end());
    const std::string guess = nearest(node.text, candidates);
    fail(node, "must be one of " + list_words(words) + ", found " + describe(node),
         guess.empty() ? "" : "did you mean '" + guess + "'?");
    return {};
  }

  bool is_list(const Node& node, FieldType type) {
    if (node.kind != Node::Kind::sequence) {
      wrong_type(node, type);
      return false;
    }
    return true;
  }

  std::optional<Value> word_list(const Node& node, Words words) {
    if (!is_list(node, FieldType::words)) return {};
    if (node.items.empty()) fail(node, "must not be empty");
    std::vector<std::string> result;
    for (const NodePtr& item : node.items)
      if (auto entry = word(*item, words)) result.push_back(std::move(*entry));
    if (result.empty() || result.size() != node.items.size()) return {};
    return result;
  }

  std::optional<Value> real_pair(const Node& node, const Range& range) {
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

  std::optional<Value> sources(const Node& node, std::string_view list) {
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

 private:
  // One {path: ..., weight: ...} of a list of data sources.
  std::optional<DataSource> source(const Node& node, std::string_view list) {
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

  std::string name_;
  Diagnostics& diagnostics_;
};

template <class T>
std::optional<Value> as_value(const std::optional<T>& value) {
  if (!value) return {};
  return Value(*value);
}

}  // namespace

std::string_view expected(FieldType type) {
  switch (type) {
    case FieldType::boolean:
      return "true or false";
    case FieldType::integer:
      return "an integer";
    case FieldType::tokens:
      return "a number of tokens";
    case FieldType::real:
      return "a number";
    case FieldType::text:
      return "text";
    case FieldType::word:
      return "a word";
    case FieldType::words:
      return "a list of words";
    case FieldType::real_pair:
      return "a list of two numbers";
    case FieldType::sources:
      return "a list of {path: PREFIX}";
  }
  return "";
}

std::optional<Value> convert(const Field& field, const Node& node, Diagnostics& diagnostics) {
  Converter converter{std::string(field.path), diagnostics};
  switch (field.type) {
    case FieldType::boolean:
      return converter.boolean(node);
    case FieldType::integer:
    case FieldType::tokens:
      return as_value(converter.integer(node, field.type, field.range, field.words));
    case FieldType::real:
      return as_value(converter.real(node, field.range));
    case FieldType::text:
      return as_value(converter.text(node));
    case FieldType::word:
      return as_value(converter.word(node, field.words));
    case FieldType::words:
      return converter.word_list(node, field.words);
    case FieldType::real_pair:
      return converter.real_pair(node, field.range);
    case FieldType::sources:
      return converter.sources(node, field.path);
  }
  return {};
}

std::string problem_of(const Field& field, const Value& value) {
  const auto outside = [&](double number) {
    return contains(field.range, number) ? "" : "must be " + describe(field.range);
  };
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    if (!field.words.empty() && std::ranges::find(field.words, std::to_string(*integer)) == field.words.end())
      return "must be one of " + list_words(field.words);
    return outside(static_cast<double>(*integer));
  }
  if (const auto* real = std::get_if<double>(&value)) return outside(*real);
  if (const auto* word = std::get_if<std::string>(&value)) {
    const bool known = field.words.empty() || std::ranges::find(field.words, *word) != field.words.end();
    return known ? "" : "must be one of " + list_words(field.words);
  }
  if (const auto* words = std::get_if<std::vector<std::string>>(&value))
    return words->empty() ? "must not be empty" : "";
  if (const auto* pair = std::get_if<std::vector<double>>(&value))
    for (const double number : *pair)
      if (const std::string problem = outside(number); !problem.empty()) return problem;
  if (const auto* list = std::get_if<std::vector<DataSource>>(&value))
    for (const DataSource& source : *list)
      if (source.path.empty() || !(source.weight > 0)) return "needs a path and a weight > 0 in every entry";
  return "";
}

}  // namespace deltaport::config
