// SPDX-License-Identifier: Apache-2.0
#include "data/json_text_field.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <vector>

namespace deltaport::test {
namespace {

/// The field's text, or "!" and what is wrong. The line lies in memory of exactly its size.
std::string field_of(const std::string& line) {
  std::vector<char> bytes(line.begin(), line.end());
  std::string_view text;
  const std::string problem = json_text_field(bytes, "text", text);
  return problem.empty() ? std::string(text) : "!" + problem;
}

TEST(JsonTextField, DecodesStrings) {
  EXPECT_EQ(field_of(R"({"text":""})"), "");
  EXPECT_EQ(field_of(R"( { "text" : "a longer text without escapes" } )"), "a longer text without escapes");
  EXPECT_EQ(field_of(R"({"text":"\"\\\/\b\f\n\r\t"})"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(field_of(R"({"text":"\u0041\u00e9\u20AC\ud83c\udf0d"})"),
            "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8D");
  EXPECT_EQ(field_of("{\"text\":\"caf\xC3\xA9 \xF0\x9F\x8C\x8D\"}"), "caf\xC3\xA9 \xF0\x9F\x8C\x8D");
  EXPECT_EQ(field_of(R"({"te\u0078t":"key with an escape"})"), "key with an escape");
  EXPECT_EQ(field_of("\xEF\xBB\xBF{\"text\":\"after a byte order mark\"}"), "after a byte order mark");
  EXPECT_EQ(field_of(R"({"a":[{"text":1},[[]],-0.5e+3,true,false,null,{}],"text":"x","b":{"text":2}})"), "x");
}

TEST(JsonTextField, RefusesWhatIsNoJson) {
  for (const char* line : {"",
                           " ",
                           "{",
                           "{\"text\"",
                           "{\"text\":",
                           "{\"text\":\"a",
                           "{\"text\":\"a\"",
                           "{\"text\":\"a\",",
                           "{\"text\":\"a\",}",
                           "{,\"text\":\"a\"}",
                           "{\"text\" \"a\"}",
                           "{\"text\":\"a\" \"b\":1}",
                           "{\"text\":\"a\"}}",
                           "{\"text\":\"a\"} x",
                           "{text:\"a\"}",
                           "{'text':'a'}",
                           "{\"text\":\"a\",\"b\":01}",
                           "{\"text\":\"a\",\"b\":1.}",
                           "{\"text\":\"a\",\"b\":.5}",
                           "{\"text\":\"a\",\"b\":+1}",
                           "{\"text\":\"a\",\"b\":1e}",
                           "{\"text\":\"a\",\"b\":-}",
                           "{\"text\":\"a\",\"b\":NaN}",
                           "{\"text\":\"a\",\"b\":nul}",
                           "{\"text\":\"a\",\"b\":True}",
                           "{\"text\":\"a\",\"b\":[1,]}",
                           "{\"text\":\"a\",\"b\":[1 2]}",
                           "{\"text\":\"a\",\"b\":[",
                           "{\"text\":\"\\x\"}",
                           "{\"text\":\"\\u12\"}",
                           "{\"text\":\"\\u12g4\"}",
                           "{\"text\":\"\\ud800\"}",
                           "{\"text\":\"\\udc00\"}",
                           "{\"text\":\"\\ud800\\u0041\"}",
                           "{\"text\":\"\\ud800\\ud800\"}",
                           "{\"text\":\"tab\tinside\"}",
                           "{\"text\":\"\xC3\"}",
                           "{\"text\":\"\xFF\"}",
                           "{\"text\":\"\xC3\\u0041\"}",
                           "{\"text\":\"\\"})
    EXPECT_TRUE(field_of(line).starts_with("!column ")) << line << " -> " << field_of(line);
}

TEST(JsonTextField, BoundsNesting) {
  const auto nested = [](std::size_t depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + ",\"text\":\"deep\"}";
  };
  EXPECT_EQ(field_of(nested(200)), "deep");
  EXPECT_TRUE(field_of(nested(100000)).find("nested too deeply") != std::string::npos);
}

/// What nlohmann-json, an independent parser, makes of the line; nothing when it refuses it.
std::optional<std::string> reference(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) return std::nullopt;
  return json["text"].get<std::string>();
}

TEST(JsonTextField, AgreesWithAnotherParserOnMutations) {
  std::mt19937_64 random(11);
  const std::string lines[] = {
      R"({"id": 12, "text": "some \"text\" \u00e9\ud83c\udf0d\n", "x": [1, -2.5e3, {"y": null}], "z": true})",
      "{\"text\": \"na\xC3\xAFve \xE2\x82\xAC long enough to be scanned by words\", \"n\": 0.1}",
  };
  const std::string alphabet = "{}[]\",:\\ue0123456789abcdfnrt -+.E/\x01\x80\xC3\xA9\xED\xA0";
  int accepted = 0;
  for (int round = 0; round < 15000; ++round) {
    std::string line = lines[round % 2];
    for (auto changes = 1 + random() % 2; changes > 0; --changes) {
      const std::size_t at = random() % line.size();
      const char c = alphabet[random() % alphabet.size()];
      if (random() % 3 == 0)
        line.erase(at, 1);
      else if (random() % 2 == 0)
        line.insert(at, 1, c);
      else
        line[at] = c;
    }
    const auto expected = reference(line);
    const std::string found = field_of(line);
    if (found.find("comes twice") != std::string::npos) continue;  // the other parser takes the last one
    ASSERT_EQ(!found.starts_with("!"), expected.has_value()) << line << "\n" << found;
    if (!expected) continue;
    ASSERT_EQ(found, *expected) << line;
    ++accepted;
  }
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace deltaport::test
