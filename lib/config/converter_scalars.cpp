// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include "config/converter.hpp"
#include "config/numbers.hpp"
#include "deltaport/config/suggest.hpp"

namespace deltaport::config {

std::string list_words(Words words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

void Converter::fail(const Node& node, const std::string& message, const std::string& hint) {
  diagnostics_.error(node.where, "'" + name_ + "' " + message, hint);
}

void Converter::wrong_type(const Node& node, FieldType type, const std::string& hint) {
  fail(node, "must be " + std::string(expected(type)) + ", found " + describe(node), hint);
}

bool Converter::is_scalar(const Node& node, FieldType type) {
  if (node.kind == Node::Kind::scalar) return true;
  wrong_type(node, type, node.kind == Node::Kind::null ? "give a value, or remove the key" : "");
  return false;
}

std::optional<Value> Converter::boolean(const Node& node) {
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

bool Converter::is_unquoted(const Node& node, FieldType type) {
  if (!is_scalar(node, type)) return false;
  if (node.style != ScalarStyle::quoted) return true;
  wrong_type(node, type, "remove the quotes");
  return false;
}

void Converter::bad_number(const Node& node, FieldType type, const std::string& problem, const Range& range) {
  if (problem == "not a number")
    wrong_type(node, type);
  else if (problem == "must be a whole number")
    fail(node, "must be a whole number, found '" + node.text + "'");
  else
    fail(node, "= " + node.text + ": " + problem, problem == "too large" ? describe(range) : "");
}

std::optional<std::int64_t> Converter::integer(const Node& node, FieldType type, const Range& range,
                                               Words words) {
  if (!is_unquoted(node, type)) return {};
  const auto number = parse_integer(node.text, type == FieldType::tokens ? Suffixes::counts : Suffixes::none);
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

std::optional<double> Converter::real(const Node& node, const Range& range) {
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

std::optional<std::string> Converter::text(const Node& node) {
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

std::optional<std::string> Converter::word(const Node& node, Words words) {
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

}  // namespace deltaport::config
