// SPDX-License-Identifier: Apache-2.0
#include "data/json_scanner.hpp"

#include <cstring>

#include "deltaport/data/utf8.hpp"

namespace deltaport {
namespace {

constexpr int max_depth = 256;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Non-zero when one of the eight bytes is zero (the lowest set bit marks the first one).
std::uint64_t zero_bytes(std::uint64_t v) {
  return (v - 0x0101010101010101ull) & ~v & 0x8080808080808080ull;
}

/// Whether one of eight bytes is a quote, a backslash or a control character.
bool any_special(std::uint64_t v) {
  const std::uint64_t quote = zero_bytes(v ^ 0x2222222222222222ull);
  const std::uint64_t backslash = zero_bytes(v ^ 0x5C5C5C5C5C5C5C5Cull);
  const std::uint64_t control = zero_bytes(v & 0xE0E0E0E0E0E0E0E0ull);
  return (quote | backslash | control) != 0;
}

char* put_utf8(char* out, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { *out++ = static_cast<char>(static_cast<unsigned char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
  return out;
}

}  // namespace

JsonScanner::JsonScanner(std::span<char> text)
    : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()) {
  if (text.size() >= 3 && std::memcmp(at_, "\xEF\xBB\xBF", 3) == 0) at_ += 3;
}

void JsonScanner::skip_space() {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
}

void JsonScanner::expect(char c, const char* what) {
  skip_space();
  if (at_ == end_ || *at_ != c) fail(what);
  ++at_;
}

JsonKind JsonScanner::peek() {
  skip_space();
  if (at_ == end_) fail("the line ends where a value is expected");
  switch (*at_) {
    case '{':
      return JsonKind::object;
    case '[':
      return JsonKind::array;
    case '"':
      return JsonKind::string;
    case 't':
    case 'f':
      return JsonKind::boolean;
    case 'n':
      return JsonKind::null;
    default:
      if (*at_ != '-' && !is_digit(*at_)) fail("expected a value");
      return JsonKind::number;
  }
}

void JsonScanner::begin_object() {
  expect('{', "expected {");
  first_key_ = true;
}

bool JsonScanner::next_key(std::string_view& key) {
  skip_space();
  if (at_ != end_ && *at_ == '}') {
    ++at_;
    first_key_ = false;
    return false;
  }
  if (!first_key_) expect(',', "expected , or }");
  first_key_ = false;
  skip_space();
  key = string();
  expect(':', "expected :");
  return true;
}

void JsonScanner::expect_end() {
  skip_space();
  if (at_ != end_) fail("text after the end of the value");
}

void JsonScanner::skip_value(int depth) {
  if (depth > max_depth) fail("nested too deeply");
  switch (peek()) {
    case JsonKind::object:
      return skip_object(depth);
    case JsonKind::array:
      return skip_array(depth);
    case JsonKind::string:
      string();
      return;
    case JsonKind::number:
      return skip_number();
    case JsonKind::boolean:
      return skip_word(*at_ == 't' ? "true" : "false");
    case JsonKind::null:
      return skip_word("null");
  }
}

void JsonScanner::skip_object(int depth) {
  begin_object();
  for (std::string_view key; next_key(key);) skip_value(depth + 1);
}

void JsonScanner::skip_array(int depth) {
  ++at_;
  skip_space();
  if (at_ != end_ && *at_ == ']') {
    ++at_;
    return;
  }
  while (true) {
    skip_value(depth + 1);
    skip_space();
    if (at_ == end_ || (*at_ != ',' && *at_ != ']')) fail("expected , or ]");
    if (*at_++ == ']') return;
  }
}

void JsonScanner::skip_digits() {
  if (at_ == end_ || !is_digit(*at_)) fail("expected a digit");
  while (at_ != end_ && is_digit(*at_)) ++at_;
}

void JsonScanner::skip_number() {
  if (*at_ == '-') ++at_;
  if (at_ != end_ && *at_ == '0')
    ++at_;  // no digit may follow
  else
    skip_digits();
  if (at_ != end_ && *at_ == '.') {
    ++at_;
    skip_digits();
  }
  if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
    ++at_;
    if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
    skip_digits();
  }
}

void JsonScanner::skip_word(std::string_view word) {
  if (std::string_view(at_, static_cast<std::size_t>(end_ - at_)).substr(0, word.size()) != word)
    fail("expected true, false or null");
  at_ += word.size();
}

void JsonScanner::skip_plain() {
  while (end_ - at_ >= 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, at_, 8);
    if (any_special(eight)) break;
    at_ += 8;
  }
  while (at_ != end_ && *at_ != '"' && *at_ != '\\' && static_cast<unsigned char>(*at_) >= 0x20) ++at_;
}

std::string_view JsonScanner::string() {
  if (at_ == end_ || *at_ != '"') fail("expected a string");
  const char* const begin = ++at_;
  char* out = at_;
  while (true) {
    const char* const plain = at_;
    skip_plain();
    const auto length = static_cast<std::size_t>(at_ - plain);
    Utf8Checker utf8;
    utf8.accept(std::string_view(plain, length));
    if (!utf8.complete()) fail("the string that ends here is not UTF-8");
    if (out != plain) std::memmove(out, plain, length);
    out += length;
    if (at_ == end_) fail("the line ends inside a string");
    if (*at_ == '\\') {
      ++at_;
      out = escape(out);
    } else if (*at_ == '"') {
      ++at_;
      return {begin, static_cast<std::size_t>(out - begin)};
    } else {
      fail("a raw control character inside a string");
    }
  }
}

char* JsonScanner::escape(char* out) {
  constexpr std::string_view names = "\"\\/bfnrt";
  constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
  if (at_ == end_) fail("the line ends inside a string");
  const char c = *at_++;
  if (c != 'u') {
    const std::size_t which = names.find(c);
    if (which == names.npos) fail("unknown escape sequence");
    *out++ = meanings[which];
    return out;
  }
  std::uint32_t code = hex4();
  if (code >= 0xDC00 && code <= 0xDFFF) fail("a low surrogate without a high one");
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') fail("a high surrogate without a low one");
    at_ += 2;
    const std::uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("a high surrogate without a low one");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  return put_utf8(out, code);
}

std::uint32_t JsonScanner::hex4() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    if (at_ == end_) fail("the line ends inside a string");
    const char c = *at_;
    if (is_digit(c))
      value = value * 16 + static_cast<std::uint32_t>(c - '0');
    else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
      value = value * 16 + static_cast<std::uint32_t>((c | 0x20) - 'a' + 10);
    else
      fail("expected four hexadecimal digits");
  }
  return value;
}

}  // namespace deltaport
