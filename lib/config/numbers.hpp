// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deltaport::config {

/// Which integer forms a key accepts.
enum class Suffixes { none, counts /* k M G T = 10^3.., Ki Mi Gi = 2^10.. */ };

/// A number, or why the text is none. `problem` is empty when `value` holds.
template <class T>
struct ParsedNumber {
  T value{};
  std::string problem;
};

/// Integers: 42, -1, 1_000_000, 1e9, 2.5e9 (whole values only) and, with counts, 64k or 1.5Mi.
/// Refuses leading zeros, hexadecimal, nan and what does not fit.
ParsedNumber<std::int64_t> parse_integer(std::string_view text, Suffixes suffixes);

/// Real numbers: 1, 1., .5, 1e-5, 1E-5, 1_000.5. Refuses leading zeros, hexadecimal, nan, inf and what does
/// not fit.
ParsedNumber<double> parse_real(std::string_view text);

/// Would a reader of YAML 1.2 take this plain scalar for a number, a boolean or null?
bool looks_like_number(std::string_view text);
bool looks_like_boolean(std::string_view text);

/// Shortest text that reads back as the same double, with a point so that other YAML readers see a
/// number: 3.0e-4.
std::string format_real(double value);

}  // namespace deltaport::config
