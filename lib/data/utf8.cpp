// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/utf8.hpp"

#include <cstring>

namespace deltaport {
namespace {

struct Lead {
  int continuation;  // bytes that follow; -1: cannot begin a character
  std::uint8_t low;  // range of the first of them
  std::uint8_t high;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {0, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

/// Length of the well-formed character at the front, or minus the length of the maximal ill-formed part.
int character_length(std::string_view text) {
  const Lead lead = lead_of(static_cast<std::uint8_t>(text[0]));
  if (lead.continuation < 0) return -1;
  for (int i = 1; i <= lead.continuation; ++i) {
    if (static_cast<std::size_t>(i) == text.size()) return -i;
    const auto byte = static_cast<std::uint8_t>(text[static_cast<std::size_t>(i)]);
    const bool fits = i == 1 ? byte >= lead.low && byte <= lead.high : byte >= 0x80 && byte <= 0xBF;
    if (!fits) return -i;
  }
  return lead.continuation + 1;
}

constexpr std::string_view replacement = "\xEF\xBF\xBD";

}  // namespace

bool Utf8Checker::accept(std::string_view piece) {
  std::size_t i = 0;
  while (valid_ && i < piece.size()) {
    if (pending_ == 0) {
      std::uint64_t eight = 0;
      while (i + 8 <= piece.size()) {  // most text is ASCII
        std::memcpy(&eight, piece.data() + i, 8);
        if ((eight & 0x8080808080808080ull) != 0) break;
        i += 8;
      }
      if (i == piece.size()) break;
      const Lead lead = lead_of(static_cast<std::uint8_t>(piece[i++]));
      valid_ = lead.continuation >= 0;
      pending_ = lead.continuation;
      low_ = lead.low;
      high_ = lead.high;
    } else {
      const auto byte = static_cast<std::uint8_t>(piece[i++]);
      valid_ = byte >= low_ && byte <= high_;
      --pending_;
      low_ = 0x80;
      high_ = 0xBF;
    }
  }
  return valid_;
}

std::size_t well_formed_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight = 0;
    while (i + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + i, 8);
      if ((eight & 0x8080808080808080ull) != 0) break;
      i += 8;
    }
    if (i == text.size()) break;
    const int length = character_length(text.substr(i));
    if (length < 0) break;
    i += static_cast<std::size_t>(length);
  }
  return i;
}

std::string replace_ill_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const int length = character_length(text);
    const auto taken = static_cast<std::size_t>(length > 0 ? length : -length);
    out += length > 0 ? text.substr(0, taken) : replacement;
    text.remove_prefix(taken);
  }
  return out;
}

std::string escape_for_terminal(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  const std::string clean = replace_ill_formed(text);
  std::string out;
  for (std::size_t i = 0; i < clean.size(); ++i) {
    const char c = clean[i];
    auto byte = static_cast<std::uint8_t>(c);
    const bool high_control =
        byte == 0xC2 && static_cast<std::uint8_t>(clean[i + 1]) < 0xA0;  // U+0080 to U+009F
    if (high_control) byte = static_cast<std::uint8_t>(clean[++i]);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\') {
      out += "\\\\";
    } else if (high_control || byte < 0x20 || byte == 0x7F) {
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace deltaport
