// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deltaport {

/// Checks UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates, at most U+10FFFF) over text that
/// comes in pieces; a character may straddle pieces.
class Utf8Checker {
 public:
  /// Returns false from the first ill-formed byte on.
  bool accept(std::string_view piece);
  /// What accept() returned last.
  bool valid() const { return valid_; }
  /// False when the text was ill-formed or ends inside a character.
  bool complete() const { return valid_ && pending_ == 0; }

 private:
  bool valid_ = true;
  int pending_ = 0;          // continuation bytes still due
  std::uint8_t low_ = 0x80;  // range of the next one
  std::uint8_t high_ = 0xBF;
};

/// Bytes of the longest front of whole well-formed characters.
std::size_t well_formed_prefix(std::string_view text);

/// The text with each maximal ill-formed part replaced by U+FFFD.
std::string replace_ill_formed(std::string_view text);

/// For a terminal: control characters as \n, \t, \xNN, backslash doubled, ill-formed parts as U+FFFD.
std::string escape_for_terminal(std::string_view text);

}  // namespace deltaport
