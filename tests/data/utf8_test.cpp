// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/utf8.hpp"

#include <gtest/gtest.h>

namespace deltaport::test {
namespace {

bool valid(std::string_view text) {
  Utf8Checker checker;
  checker.accept(text);
  return checker.complete();
}

TEST(Utf8, AcceptsExactlyTheScalarValues) {
  for (const char* good :
       {"", "plain ASCII, longer than a word", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
        "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(valid(good)) << good;
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3", "\xE2\x82", "a\xC3z", "12345678\xFF"})
    EXPECT_FALSE(valid(bad)) << bad;
}

TEST(Utf8, PiecesMayCutCharacters) {
  const std::string text = "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x8C\x8D and more ASCII text";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Checker checker;
    checker.accept(std::string_view(text).substr(0, cut));
    checker.accept(std::string_view(text).substr(cut));
    EXPECT_TRUE(checker.complete()) << cut;
  }
}

TEST(Utf8, ReplacesMaximalIllFormedParts) {
  // The example of the Unicode standard, table 3-8.
  EXPECT_EQ(replace_ill_formed("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(replace_ill_formed("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_ill_formed("caf\xC3\xA9"), "caf\xC3\xA9");
}

TEST(Utf8, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(escape_for_terminal("a\n\tb\\\x1b[0m\x7f"), "a\\n\\tb\\\\\\x1b[0m\\x7f");
  EXPECT_EQ(escape_for_terminal("\xC2\x9B"
                                "31m \xC3\xA9 \xC2\xA0|\xFF"),
            "\\x9b31m \xC3\xA9 \xC2\xA0|\uFFFD");
  EXPECT_EQ(escape_for_terminal(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(escape_for_terminal("\xC2"), "\uFFFD");
}

}  // namespace
}  // namespace deltaport::test
