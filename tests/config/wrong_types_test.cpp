// SPDX-License-Identifier: Apache-2.0
// Every key with every wrong kind of value: one error, at the value's place, naming the key.
#include "config/field.hpp"
#include "paths.hpp"

namespace deltaport::test {
namespace {

using config::Field;
using config::FieldType;

std::vector<std::string> wrong_values(const Field& field) {
  switch (field.type) {
    case FieldType::boolean:
      return {"yes", "no", "on", "off", "1", "0", "True", "'true'", "[true]", "{a: 1}", "abc", "1.5"};
    case FieldType::integer:
    case FieldType::tokens:
      return {"1.5",
              "true",
              "'3'",
              "\"3\"",
              "[1]",
              "{a: 1}",
              "abc",
              "010",
              "0x10",
              ".nan",
              ".inf",
              "1e400",
              "99999999999999999999",
              "yes",
              "-1",
              "1,000"};
    case FieldType::real:
      return {"true", "'0.5'", "[0.5]", "{a: 1}", "abc", "00.5", "0x1",
              ".nan", ".inf",  "-.inf", "1e400",  "-1",  "yes"};
    case FieldType::text:
      return {"12", "1.5", "1e5", "010", "0x10", "true", "False", "[a]", "{a: b}", "''", ".nan"};
    case FieldType::word:
      return {"nonsense", "12", "true", "[a]", "{a: b}", "''"};
    case FieldType::words:
      return {"gdn", "{gdn: 1}", "12", "true", "''"};
    case FieldType::real_pair:
      return {"0.9", "[0.9]", "[0.9, 0.95, 0.99]", "{a: 1}", "true", "abc", "[]"};
    case FieldType::sources:
      return {"abc", "{path: a}", "12", "true", "''"};
  }
  return {};
}

void expect_error(const std::string& path, const std::string& value, bool at_value) {
  const std::size_t dot = path.rfind('.') + 1;  // 0 without one
  const std::string section = path.substr(0, dot == 0 ? 0 : dot - 1), key = path.substr(dot) + ": ";
  const std::size_t depth = parts_of(section).size();
  const std::string version = path == "version" ? "" : "version: 1\n";
  const std::string text = version + below(section, key + value);
  const std::size_t line = (version.empty() ? 0 : 1) + depth + 1, column = 2 * depth + key.size() + 1;
  const std::string report = refuse(text);
  EXPECT_TRUE(has(report, "the configuration has 1 error\n")) << text;
  const std::string place =
      at_value ? concat("run.yaml:", line, ":", column, ": error: ") : concat("run.yaml:", line, ":");
  EXPECT_TRUE(has(report, place)) << text;
  EXPECT_TRUE(has(report, concat("'", path))) << text;
}

TEST(WrongTypes, EveryKeyRefusesEveryWrongKind) {
  for (const Field& field : config::fields()) {
    for (const std::string& value : wrong_values(field)) {
      const bool negative_is_fine = value == "-1" && config::contains(field.range, -1) && field.words.empty();
      ASSERT_FALSE(negative_is_fine) << field.path;
      expect_error(std::string(field.path), value, true);
    }
    if (field.null == config::Null::refused) {
      expect_error(std::string(field.path), "", false);
      expect_error(std::string(field.path), "~", false);
      expect_error(std::string(field.path), "null", false);
    }
  }
}

TEST(WrongTypes, EverySectionRefusesValues) {
  for (const std::string& section : all_sections())
    for (const char* value : {"1", "abc", "[1, 2]", "true", ""}) expect_error(section, value, false);
}

TEST(WrongTypes, EmptySectionsAreFine) {
  EXPECT_EQ(parse_canonical("version: 1\nmodel: {}\n").model.vocab_size, 257);
}

TEST(WrongTypes, NullMeansDefaultWhereAllowed) {
  const RunConfig config = parse_canonical("version: 1\ncheckpoint: {dir: ~}\ndata: {valid: null}\n");
  EXPECT_EQ(config.checkpoint.dir, "runs/run/checkpoints");
  EXPECT_TRUE(config.data.valid.empty());
}

TEST(WrongTypes, ListItemsHavePlaces) {
  EXPECT_TRUE(
      has(refuse("model:\n  layer_pattern: [gdn, gdm2]\n"),
          "run.yaml:2:24: error: 'model.layer_pattern' must be one of gdn, gdn2, attention, found 'gdm2'"));
  EXPECT_TRUE(
      has(refuse("model: {layer_pattern: []}\n"), "1:24: error: 'model.layer_pattern' must not be empty"));
  EXPECT_TRUE(has(refuse("model: {layer_pattern: [gdn, [gdn]]}\n"), "1:30: error: "));
  EXPECT_TRUE(has(refuse("optimizer: {betas: [0.9, 1.0]}\n"),
                  "1:26: error: 'optimizer.betas' must be >= 0 and < 1, found 1.0"));
  EXPECT_TRUE(
      has(refuse("optimizer: {betas: [x, 0.9]}\n"), "1:21: error: 'optimizer.betas' must be a number"));
}

TEST(WrongTypes, DataSourcesAreChecked) {
  const std::pair<const char*, const char*> rows[] = {
      {"[abc]", "1:16: error: 'data.train[0]' must be {path: PREFIX}"},
      {"[{weight: 1}]", "1:16: error: 'data.train[0]' needs a 'path'"},
      {"[{path: 12}]", "1:23: error: 'data.train[0].path' must be text, found '12'"},
      {"[{path: a}, {path: [b]}]", "1:34: error: 'data.train[1].path' must be text, found a list"},
      {"[{path: a, weight: 0}]", "1:34: error: 'data.train[0].weight' must be > 0, found 0"},
      {"[{path: a, weight: abc}]", "1:34: error: 'data.train[0].weight' must be a number"},
      {"[{path: a, wieght: 1}]", "1:26: error: unknown key 'data.train[0].wieght'"},
      {"[{path: ''}]", "1:23: error: 'data.train[0].path' must not be empty"},
      {"[~]", "error: 'data.train[0]' must be {path: PREFIX}, found nothing"}};
  for (const auto& [value, message] : rows)
    EXPECT_TRUE(has(refuse(concat("data: {train: ", value, "}\n")), message));
  EXPECT_TRUE(has(refuse("data: {train: [{path: a, wieght: 1}]}\n"), "did you mean 'weight'?"));
  EXPECT_TRUE(has(refuse("data: {valid: [{path: a, weight: 1}]}\n"), "unknown key 'data.valid[0].weight'"));
}

TEST(WrongTypes, HintsSayWhatToWrite) {
  EXPECT_TRUE(has(refuse("eval: {at_start: yes}\n"), "write true"));
  EXPECT_TRUE(has(refuse("eval: {at_start: OFF}\n"), "write false"));
  EXPECT_TRUE(has(refuse("train: {steps: '12'}\n"), "found the quoted text '12'"));
  EXPECT_TRUE(has(refuse("train: {steps: '12'}\n"), "remove the quotes"));
  EXPECT_TRUE(has(refuse("run: {name: 12}\n"), "quote it: \"12\""));
  EXPECT_TRUE(has(refuse("schedule: {name: cosin}\n"), "did you mean 'cosine'?"));
  EXPECT_TRUE(has(refuse("train: {steps: 4k}\n"), "unit suffixes are only for counts of tokens"));
  EXPECT_TRUE(has(refuse("train: {steps: 010}\n"), "must not start with 0"));
}

}  // namespace
}  // namespace deltaport::test
