// SPDX-License-Identifier: Apache-2.0
// Every known key, at every depth, misspelt by every kind of single edit: an error at the right place with
// the right guess.
#include <algorithm>
#include <set>

#include "config/field.hpp"
#include "paths.hpp"

namespace deltaport::test {
namespace {

std::set<std::string> one_edit_away(const std::string& word) {
  std::set<std::string> variants;
  for (std::size_t i = 0; i <= word.size(); ++i) {
    variants.insert(concat(word.substr(0, i), "x", word.substr(i)));
    if (i == word.size()) break;
    variants.insert(word.substr(0, i) + word.substr(i + 1));
    variants.insert(concat(word.substr(0, i), "z", word.substr(i + 1)));
    if (i + 1 == word.size()) continue;
    std::string swapped = word;
    std::swap(swapped[i], swapped[i + 1]);
    variants.insert(swapped);
  }
  variants.erase(word);
  variants.erase("");
  return variants;
}

void expect_guess(const std::string& section, const std::string& name, const std::string& wrong,
                  const char* value) {
  const std::size_t depth = parts_of(section).size();
  const std::string indent(2 * depth, ' ');
  const std::size_t line = 2 + depth + 1;
  const std::string report = refuse("# a comment\nversion: 1\n" + below(section, wrong + ": " + value));
  const std::string path = section.empty() ? wrong : section + "." + wrong;
  EXPECT_TRUE(has(report, "the configuration has 1 error\n"));
  EXPECT_TRUE(
      has(report, concat("run.yaml:", line, ":", indent.size() + 1, ": error: unknown key '", path, "'\n")));
  EXPECT_TRUE(
      has(report, concat(indent, "^", std::string(wrong.size() - 1, '~'), " did you mean '", name, "'?")));
}

TEST(MisspeltKeys, AreErrorsWithPlaceAndGuess) {
  const char* values[] = {"1", "abc", "[1, 2]", "{a: 1}", "true", "~"};  // no kind of value slips through
  std::size_t count = 0;
  std::set<std::string> paths = all_sections();
  for (const config::Field& field : config::fields()) paths.emplace(field.path);
  for (const std::string& path : paths) {
    const std::size_t dot = path.rfind('.');
    const std::string section = dot == std::string::npos ? "" : path.substr(0, dot);
    const std::string name = path.substr(dot + 1);
    for (const std::string& wrong : one_edit_away(name)) {
      if (!config::paths_ending_in(wrong).empty()) continue;  // another key's name
      expect_guess(section, name, wrong, values[count++ % std::size(values)]);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(count, 1000u);
}

TEST(MisspeltKeys, MisplacedKeysAreNamedByTheirPlace) {
  EXPECT_TRUE(has(refuse("lr: 1.0e-3\n"), "run.yaml:1:1: error: unknown key 'lr'"));
  EXPECT_TRUE(has(refuse("lr: 1.0e-3\n"), "'lr' is known as 'optimizer.lr'"));
  EXPECT_TRUE(has(refuse("train:\n  lr: 1.0e-3\n"), "run.yaml:2:3: error: unknown key 'train.lr'"));
  EXPECT_TRUE(has(refuse("train:\n  verify_hashes: true\n"),
                  "'verify_hashes' is known as 'checkpoint.verify_hashes'"));
  EXPECT_TRUE(has(refuse("train:\n  keep_last: 3\n"),
                  "'keep_last' is known as 'offload.keep_last' or 'checkpoint.keep_last'"));
  EXPECT_TRUE(has(refuse("every: 3\n"), "known as 'checkpoint.every' or 'eval.every' or 'logging.every'"));
  EXPECT_TRUE(has(refuse("linear: {}\n"), "'linear' is known as 'model.linear'"));
  EXPECT_TRUE(has(refuse("model: {head_dim: 3}\n"), "'head_dim' is known as 'model.attention.head_dim'"));
  EXPECT_TRUE(has(refuse("weight_deacy: 0.1\n"), "did you mean 'optimizer.weight_decay'?"));
}

TEST(MisspeltKeys, NonsenseGetsNoGuess) {
  const std::string report = refuse("completely_different: 1\n");
  EXPECT_TRUE(has(report, "unknown key 'completely_different'"));
  EXPECT_EQ(report.find("did you mean"), std::string::npos);
}

TEST(MisspeltKeys, DottedKeysInFilesAreExplained) {
  EXPECT_TRUE(has(refuse("train.steps: 50\n"), "run.yaml:1:1: error: unknown key 'train.steps'"));
  EXPECT_TRUE(has(refuse("train.steps: 50\n"), "sections are nested"));
  EXPECT_TRUE(has(refuse("model.linear: {}\n"), "sections are nested"));
}

TEST(MisspeltKeys, NamesAreCaseSensitive) {
  EXPECT_TRUE(has(refuse("Train: {steps: 5}\n"), "did you mean 'train'?"));
}

}  // namespace
}  // namespace deltaport::test
