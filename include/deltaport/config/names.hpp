// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "deltaport/config/run_config.hpp"

namespace deltaport {

/// The YAML words of each enumeration, in the order of its enumerators.
template <class E>
std::span<const std::string_view> names_of();
template <>
std::span<const std::string_view> names_of<LayerType>();
template <>
std::span<const std::string_view> names_of<Precision>();
template <>
std::span<const std::string_view> names_of<OnNonFinite>();
template <>
std::span<const std::string_view> names_of<ScheduleName>();
template <>
std::span<const std::string_view> names_of<RecurrenceName>();
template <>
std::span<const std::string_view> names_of<AttentionName>();
template <>
std::span<const std::string_view> names_of<GraphScope>();
template <>
std::span<const std::string_view> names_of<OnCaptureFailure>();
template <>
std::span<const std::string_view> names_of<CoreInputsAgain>();
template <>
std::span<const std::string_view> names_of<OffloadScope>();

/// The word for one value, e.g. "gdn2".
template <class E>
std::string_view name_of(E value) {
  return names_of<E>()[static_cast<std::size_t>(value)];
}

/// The value of a word, or nothing.
template <class E>
std::optional<E> value_of(std::string_view name) {
  const auto names = names_of<E>();
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace deltaport
