// SPDX-License-Identifier: Apache-2.0
// The forms in which people write numbers: each is either read exactly or refused, never taken for text.
#include "config/numbers.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace deltaport::config {
namespace {

struct IntegerRow {
  const char* text;
  std::int64_t value;
};

TEST(ParseInteger, ReadsEveryExactForm) {
  const IntegerRow rows[] = {{"0", 0},
                             {"7", 7},
                             {"-12", -12},
                             {"+5", 5},
                             {"1_000_000", 1000000},
                             {"1e9", 1000000000},
                             {"1E3", 1000},
                             {"2.5e9", 2500000000},
                             {"5e12", 5000000000000},
                             {"100e-2", 1},
                             {"1.0", 1},
                             {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
                             {"0e5", 0},
                             {"0.0", 0}};
  for (const IntegerRow& row : rows) {
    const auto parsed = parse_integer(row.text, Suffixes::none);
    EXPECT_EQ(parsed.problem, "") << row.text;
    EXPECT_EQ(parsed.value, row.value) << row.text;
  }
}

TEST(ParseInteger, ReadsSuffixesOfCounts) {
  const IntegerRow rows[] = {{"4k", 4000},      {"2M", 2000000},   {"3G", 3000000000},  {"1T", 1000000000000},
                             {"512Ki", 524288}, {"1Mi", 1 << 20},  {"2Gi", 2147483648}, {"1.5Ki", 1536},
                             {"1.5k", 1500},    {"0.5Mi", 524288}, {"1_000k", 1000000}};
  for (const IntegerRow& row : rows) {
    const auto parsed = parse_integer(row.text, Suffixes::counts);
    EXPECT_EQ(parsed.problem, "") << row.text;
    EXPECT_EQ(parsed.value, row.value) << row.text;
    EXPECT_NE(parse_integer(row.text, Suffixes::none).problem, "") << row.text;
  }
}

TEST(ParseInteger, RefusesEverythingElse) {
  for (const char* text : {"",
                           "-",
                           "+",
                           ".",
                           "010",
                           "00",
                           "-01",
                           "0x10",
                           "0X1F",
                           "0o17",
                           "0b1",
                           "1.5",
                           "1e-1",
                           "2.5e0",
                           "nan",
                           ".nan",
                           ".inf",
                           "-.inf",
                           "inf",
                           "1_",
                           "_1",
                           "1__0",
                           "1e",
                           "1e+",
                           "e5",
                           "1 000",
                           "1,000",
                           "yes",
                           "abc",
                           "12abc",
                           "--1",
                           "9223372036854775808",
                           "1e19",
                           "1e400",
                           "99999999999999999999999999",
                           "0.1Ki",
                           "4kk",
                           "4Ti",
                           "1e99999999999"})
    EXPECT_NE(parse_integer(text, Suffixes::counts).problem, "") << "'" << text << "'";
}

TEST(ParseReal, ReadsEveryForm) {
  const std::pair<const char*, double> rows[] = {
      {"1", 1.0},       {"1.", 1.0},    {".5", 0.5},           {"1e-5", 1e-5},    {"1E-5", 1e-5},
      {"1.0e-5", 1e-5}, {"-2.5", -2.5}, {"+3", 3.0},           {"5e12", 5e12},    {"0.1", 0.1},
      {"0", 0.0},       {"0.0", 0.0},   {"10_000.5", 10000.5}, {"3.0e-04", 3e-4}, {"1.0e+7", 1e7}};
  for (const auto& [text, value] : rows) {
    const auto parsed = parse_real(text);
    EXPECT_EQ(parsed.problem, "") << text;
    EXPECT_EQ(parsed.value, value) << text;
  }
}

TEST(ParseReal, RefusesEverythingElse) {
  for (const char* text :
       {"",       ".",  "-",    "010",   "00.5", "0x1p3", "nan", ".nan", "inf", "-.inf", "1e400",
        "1e-400", "1e", "1e5x", "1.2.3", "1,5",  "4k",    "e5",  "1_e5", "yes", "1e+-5"})
    EXPECT_NE(parse_real(text).problem, "") << "'" << text << "'";
}

TEST(FormatReal, ReadsBackAndLooksLikeANumberElsewhere) {
  for (const double value : {0.0, 1.0, 3e-4, 1e-5, 0.1, 1e7, 1e-300, 123456789.125, 2.0 / 3.0, -1.5, 1e22}) {
    const std::string text = format_real(value);
    EXPECT_EQ(parse_real(text).value, value) << text;
    EXPECT_NE(text.find('.'), std::string::npos) << text;  // YAML 1.1 readers take 1e-5 for text
  }
}

TEST(LooksLike, KnowsWhatAPlainScalarIs) {
  for (const char* text : {"12", "1e5", "010", "0x1F", ".5", "-3", "1_000", ".nan", ".inf"})
    EXPECT_TRUE(looks_like_number(text)) << text;
  for (const char* text : {"abc", "12abc", "runs/12", "1.2.3", "nan", "inf", "", "-", ".", "4k", "e5"})
    EXPECT_FALSE(looks_like_number(text)) << text;
  for (const char* text : {"true", "false", "True", "FALSE"}) EXPECT_TRUE(looks_like_boolean(text)) << text;
  for (const char* text : {"yes", "no", "on", "truth", ""}) EXPECT_FALSE(looks_like_boolean(text)) << text;
}

}  // namespace
}  // namespace deltaport::config
