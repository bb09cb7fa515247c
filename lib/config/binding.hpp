// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "config/field.hpp"
#include "deltaport/config/names.hpp"

namespace deltaport::config {

template <class T>
Value to_value(const T& member) {
  if constexpr (std::is_enum_v<T>)
    return std::string(name_of(member));
  else
    return member;
}
template <class E>
requires std::is_enum_v<E> Value to_value(const std::vector<E>& member) {
  std::vector<std::string> words;
  for (const E value : member) words.emplace_back(name_of(value));
  return words;
}
inline Value to_value(const std::uint64_t& member) {
  return static_cast<std::int64_t>(member);
}

template <class T>
void from_value(T& member, const Value& value) {
  if constexpr (std::is_enum_v<T>)
    member = *value_of<T>(std::get<std::string>(value));
  else
    member = std::get<T>(value);
}
template <class E>
requires std::is_enum_v<E>
void from_value(std::vector<E>& member, const Value& value) {
  member.clear();
  for (const std::string& word : std::get<std::vector<std::string>>(value))
    member.push_back(*value_of<E>(word));
}
inline void from_value(std::uint64_t& member, const Value& value) {
  member = static_cast<std::uint64_t>(std::get<std::int64_t>(value));
}

/// Binds the member reached by following the pointers to members, e.g. bind<&RunConfig::train,
/// &TrainConfig::steps>.
template <auto... pointers>
inline constexpr Binding bind{
    [](const RunConfig& config) { return to_value((config.*....*pointers)); },
    [](RunConfig& config, const Value& value) { from_value((config.*....*pointers), value); }};

}  // namespace deltaport::config
