// SPDX-License-Identifier: Apache-2.0
#include "config/numbers.hpp"

#include <charconv>
#include <limits>
#include <system_error>

namespace deltaport::config {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A decimal number taken apart: (-1)^negative * whole.fraction * 10^exponent, then the suffix.
struct Decimal {
  bool negative = false;
  std::string whole;
  std::string fraction;
  int exponent = 0;
  std::string_view suffix;
  std::string problem;
};

// Digits with single underscores between them. Returns what follows.
std::string_view take_digits(std::string_view text, std::string& digits) {
  std::size_t i = 0;
  while (i < text.size() && (is_digit(text[i]) || (text[i] == '_' && i > 0 && is_digit(text[i - 1]) &&
                                                   i + 1 < text.size() && is_digit(text[i + 1])))) {
    if (text[i] != '_') digits += text[i];
    ++i;
  }
  return text.substr(i);
}

std::string_view take_exponent(std::string_view text, Decimal& decimal) {
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) return text;
  std::string_view rest = text.substr(1);
  const bool negative = !rest.empty() && rest[0] == '-';
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  std::size_t count = 0;
  int value = 0;
  while (count < rest.size() && is_digit(rest[count]))
    value = std::min(value * 10 + (rest[count++] - '0'), 9999);
  if (count == 0) return text;
  decimal.exponent = negative ? -value : value;
  return rest.substr(count);
}

std::string common_mistake(std::string_view unsigned_text) {
  if (unsigned_text.size() > 1 && unsigned_text[0] == '0') {
    const char second = unsigned_text[1];
    if (second == 'x' || second == 'X') return "hexadecimal numbers are not supported";
    if (second == 'o' || second == 'b') return "octal and binary numbers are not supported";
    if (is_digit(second) || second == '_') return "a number must not start with 0 (is it octal?)";
  }
  if (unsigned_text == ".nan" || unsigned_text == ".NaN" || unsigned_text == ".inf" ||
      unsigned_text == ".Inf" || unsigned_text == "nan" || unsigned_text == "inf" ||
      unsigned_text == ".NAN" || unsigned_text == ".INF")
    return "must be finite";
  return "";
}

Decimal take_apart(std::string_view text) {
  Decimal d;
  d.negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  d.problem = common_mistake(text);
  if (!d.problem.empty()) return d;
  std::string_view rest = take_digits(text, d.whole);
  if (!rest.empty() && rest[0] == '.') rest = take_digits(rest.substr(1), d.fraction);
  if (d.whole.empty() && d.fraction.empty()) {
    d.problem = "not a number";
    return d;
  }
  d.suffix = take_exponent(rest, d);
  return d;
}

// 10^n * 2^m of a suffix; false for an unknown one.
bool apply_suffix(std::string_view suffix, int& tens, int& twos) {
  if (suffix.empty()) return true;
  const bool binary = suffix.size() == 2 && suffix[1] == 'i';
  if (suffix.size() != 1 && !binary) return false;
  const std::string_view letters = binary ? "KMG" : "kMGT";
  const std::size_t power = letters.find(suffix[0]);
  if (power == std::string_view::npos) return false;
  (binary ? twos : tens) += (binary ? 10 : 3) * static_cast<int>(power + 1);
  return true;
}

}  // namespace

ParsedNumber<std::int64_t> parse_integer(std::string_view text, Suffixes suffixes) {
  const Decimal d = take_apart(text);
  if (!d.problem.empty()) return {0, d.problem};
  int tens = d.exponent - static_cast<int>(std::min<std::size_t>(d.fraction.size(), 100000));
  int twos = 0;
  if (!apply_suffix(d.suffix, tens, twos)) return {0, "not a number"};
  if (!d.suffix.empty() && suffixes == Suffixes::none)
    return {0, "unit suffixes are only for counts of tokens"};
  std::string digits = d.whole + d.fraction;
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back(), ++tens;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  if (digits == "0") return {0, ""};
  if (digits.size() > 19 || tens > 18) return {0, "too large"};
  __int128 value = 0;
  for (const char c : digits) value = value * 10 + (c - '0');
  value <<= twos;  // < 10^19 * 2^30 < 2^94
  for (; tens < 0 && value % 10 == 0; ++tens) value /= 10;
  if (tens < 0) return {0, "must be a whole number"};
  const __int128 limit = std::numeric_limits<std::int64_t>::max();
  for (; tens > 0 && value <= limit; --tens) value *= 10;
  if (value > limit) return {0, "too large"};
  return {static_cast<std::int64_t>(d.negative ? -value : value), ""};
}

ParsedNumber<double> parse_real(std::string_view text) {
  const Decimal d = take_apart(text);
  if (!d.problem.empty()) return {0, d.problem};
  if (!d.suffix.empty()) return {0, "not a number"};
  const std::string plain = (d.negative ? "-" : "") + (d.whole.empty() ? "0" : d.whole) + "." +
                            (d.fraction.empty() ? "0" : d.fraction) + "e" + std::to_string(d.exponent);
  double value = 0;
  const auto [end, failure] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (failure == std::errc::result_out_of_range) return {0, "does not fit a double"};
  if (failure != std::errc() || end != plain.data() + plain.size()) return {0, "not a number"};
  return {value, ""};
}

bool looks_like_number(std::string_view text) {
  const Decimal d = take_apart(text);
  return d.problem.empty() ? d.suffix.empty() : d.problem != "not a number" && text != "inf" && text != "nan";
}

bool looks_like_boolean(std::string_view text) {
  return text == "true" || text == "false" || text == "True" || text == "False" || text == "TRUE" ||
         text == "FALSE";
}

std::string format_real(double value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  if (text.find('.') != std::string::npos) return text;
  const std::size_t exponent = text.find('e');
  return exponent == std::string::npos ? text + ".0" : text.insert(exponent, ".0");
}

}  // namespace deltaport::config
