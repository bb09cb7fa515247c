// SPDX-License-Identifier: Apache-2.0
// The form of the report, which editors and CI read.
#include "support.hpp"

namespace deltaport::test {
namespace {

TEST(Report, IsExactlyThis) {
  const std::string report = report_of(
      "version: 1\n"
      "optimizer:\n"
      "  weight_deacy: 0.1\n"
      "train:\n"
      "  steps: many   # not a number\n");
  EXPECT_EQ(report,
            "the configuration has 2 errors\n"
            "run.yaml:3:3: error: unknown key 'optimizer.weight_deacy'\n"
            "   3 |   weight_deacy: 0.1\n"
            "     |   ^~~~~~~~~~~~ did you mean 'weight_decay'?\n"
            "run.yaml:5:10: error: 'train.steps' must be an integer, found 'many'\n"
            "   5 |   steps: many   # not a number\n"
            "     |          ^~~~");
}

TEST(Report, CollectsSyntaxTypeAndRuleErrorsByLine) {
  const std::string report = report_of(
      "version: 1\n"
      "schedule: {warmup: 100}\n"
      "train: {steps: 50, stepz: 1, steps: 2}\n"
      "model: {attention: {num_heads: 3}, hidden_size: -5}\n");
  const char* in_order[] = {"5 errors",
                            "2:20: error: 'schedule.warmup' = 100 must be less than train.steps = 50",
                            "3:20: error: unknown key 'train.stepz'",
                            "3:30: error: duplicate key",
                            "4:32: error: 'model.attention.num_heads' = 3 must be a multiple",
                            "4:49: error: 'model.hidden_size' must be >= 1"};
  std::size_t from = 0;
  for (const char* part : in_order) {
    const std::size_t at = report.find(part, from);
    ASSERT_NE(at, std::string::npos) << part << " in:\n" << report;
    from = at;
  }
}

TEST(Report, StopsAtTwenty) {
  std::string text = "version: 1\n";
  for (int i = 0; i < 30; ++i) text += "wrong_" + std::to_string(i) + ": 1\n";
  const std::string report = report_of(text);
  EXPECT_TRUE(has(report, "the configuration has 30 errors"));
  EXPECT_TRUE(has(report, "unknown key 'wrong_19'"));
  EXPECT_FALSE(has(report, "unknown key 'wrong_20'"));
  EXPECT_TRUE(has(report, "... and 10 more"));
}

TEST(Report, CaretsStandBelowTabsAndWideText) {
  EXPECT_TRUE(has(report_of("run: {name: \"ä\", \tseed: x}\n"),
                  "   1 | run: {name: \"ä\", \tseed: x}\n"
                  "     |                  \t      ^"));
}

TEST(Report, LongLinesAreCut) {
  const std::string report = report_of("run: {name: \"" + std::string(5000, 'a') + "\", sede: 1}\n");
  EXPECT_LT(report.size(), 700u);
  EXPECT_TRUE(has(report, "sede: 1}"));
  EXPECT_TRUE(has(report, "^~~~ did you mean 'seed'?"));
}

TEST(Report, SecondFileComesAfterTheFirst) {
  TemporaryDirectory directory;
  LoadRequest request;
  request.files = {directory.write("z.yaml", "version: 1\ntrain: {stpes: 1}\n"),
                   directory.write("a.yaml", "version: 1\nrun: {sede: 1}\n")};
  request.environment = Variables{};
  try {
    load_config(request);
    FAIL();
  } catch (const ConfigError& e) {
    const std::string report = e.what();
    EXPECT_LT(report.find("z.yaml:2:9"), report.find("a.yaml:2:7"));
  }
}

}  // namespace
}  // namespace deltaport::test
