// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace deltaport {

enum class JsonKind { object, array, string, number, boolean, null };

/// Walks one JSON text (RFC 8259, strict: valid UTF-8, paired surrogates, no raw control characters), front
/// to back, without allocating: strings are decoded in place, which always fits. Every member throws Invalid
/// where the text is wrong.
class JsonScanner {
 public:
  struct Invalid {
    std::int64_t column;  ///< from 1, in bytes
    const char* what;
  };

  /// `text` is altered. A byte order mark at its front is skipped.
  explicit JsonScanner(std::span<char> text);

  /// Kind of the next value, from its first character.
  JsonKind peek();
  void begin_object();
  /// The next key of the object begun last, past its colon; false past the closing brace.
  bool next_key(std::string_view& key);
  /// A string value, decoded; valid as long as the text.
  std::string_view string();
  /// Checks and passes any value; objects and arrays nest 256 deep at most.
  void skip_value(int depth = 0);
  /// Only white space may be left.
  void expect_end();

 private:
  [[noreturn]] void fail(const char* what) const { throw Invalid{at_ - begin_ + 1, what}; }
  void skip_space();
  void expect(char c, const char* what);
  void skip_object(int depth);
  void skip_array(int depth);
  void skip_number();
  void skip_digits();
  void skip_word(std::string_view word);
  /// Moves past characters that stand for themselves.
  void skip_plain();
  /// Decodes what follows a backslash to `out`; returns its end.
  char* escape(char* out);
  std::uint32_t hex4();

  char* begin_;
  char* at_;
  char* end_;
  bool first_key_ = false;
};

}  // namespace deltaport
