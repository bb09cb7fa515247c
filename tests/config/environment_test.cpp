// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "support.hpp"

namespace deltaport::test {
namespace {

TEST(Environment, SetsKeys) {
  const LoadedConfig loaded = load_arguments({}, {{"DELTAPORT_TRAIN__STEPS", "50"},
                                                  {"DELTAPORT_MODEL__LINEAR__KEY_HEAD_DIM", "32"},
                                                  {"DELTAPORT_RUN__NAME", "123"},
                                                  {"DELTAPORT_MODEL__LAYER_PATTERN", "[gdn2]"},
                                                  {"HOME", "/somewhere"}});
  EXPECT_EQ(loaded.config.train.steps, 50);
  EXPECT_EQ(loaded.config.model.linear.key_head_dim, 32);
  EXPECT_EQ(loaded.config.run.name, "123");
  EXPECT_EQ(loaded.config.model.layer_pattern.front(), LayerType::gdn2);
  EXPECT_EQ(loaded.origins.at("train.steps"), "environment");
  EXPECT_EQ(loaded.environment.count("HOME"), 0u);
  EXPECT_EQ(loaded.environment.at("DELTAPORT_TRAIN__STEPS"), "50");
}

TEST(Environment, UnknownNamesAreErrors) {
  const std::string report =
      argument_report({}, {{"DELTAPORT_TRAIN__STPES", "5"}, {"DELTAPORT_SOMETHING", "1"}});
  EXPECT_TRUE(has(
      report,
      "<environment>:DELTAPORT_TRAIN__STPES: error: unknown environment variable 'DELTAPORT_TRAIN__STPES'\n"
      "  did you mean 'DELTAPORT_TRAIN__STEPS'?"));
  EXPECT_TRUE(has(report, "unknown environment variable 'DELTAPORT_SOMETHING'"));
  EXPECT_TRUE(
      has(argument_report({}, {{"DELTAPORT_TRAIN_STEPS", "5"}}), "did you mean 'DELTAPORT_TRAIN__STEPS'?"));
  EXPECT_TRUE(has(argument_report({}, {{"DELTAPORT_train__steps", "5"}}), "unknown environment variable"));
}

TEST(Environment, SwitchesOfTheProgramAreNoKeys) {
  const LoadedConfig loaded = load_arguments({}, {{"DELTAPORT_PROGRESS", "1"},
                                                  {"DELTAPORT_ALLOW_SINGLE_RANK", "1"},
                                                  {"DELTAPORT_HOST_ISA", "avx2"},
                                                  {"DELTAPORT_CUDA_OVERLAP", "0"}});
  EXPECT_TRUE(loaded.environment.empty());
}

TEST(Environment, ValuesMustBeText) {
  EXPECT_TRUE(has(argument_report({}, {{"DELTAPORT_RUN__NAME", "a\xff"}}), "byte 255 is not UTF-8 text"));
  EXPECT_TRUE(has(argument_report({"--run.name=a\xff"}, {}), "byte 255 is not UTF-8 text"));
}

TEST(Environment, WrongValuesNameTheVariable) {
  EXPECT_TRUE(
      has(argument_report({}, {{"DELTAPORT_TRAIN__STEPS", "x"}}),
          "<environment>:DELTAPORT_TRAIN__STEPS: error: 'train.steps' must be an integer, found 'x'"));
}

TEST(Environment, TheProcessOwnIsUsedByDefault) {
  ASSERT_EQ(setenv("DELTAPORT_TRAIN__STEPS", "77", 1), 0);
  LoadRequest request;
  request.data = DataSection::optional;
  const std::int64_t steps = load_config(request).config.train.steps;
  unsetenv("DELTAPORT_TRAIN__STEPS");
  EXPECT_EQ(steps, 77);
}

}  // namespace
}  // namespace deltaport::test
