// SPDX-License-Identifier: Apache-2.0
#include "config/convert.hpp"

#include <algorithm>

#include "config/converter.hpp"

namespace deltaport::config {
namespace {

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
