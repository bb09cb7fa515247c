// SPDX-License-Identifier: Apache-2.0
// validate, print-config and schema as a user calls them: output, error text, exit code.
#include "apps/call.hpp"
#include "deltaport/config/schema.hpp"
#include "support.hpp"

namespace deltaport::test {
namespace {

class Commands : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::string good_ = directory_.write("good.yaml", "version: 1\ndata: {train: [{path: p}]}\n");
  std::string bad_ = directory_.write("bad.yaml", "version: 1\ntrain:\n  stpes: 5\n");
  std::string more_ = directory_.write("100", "version: 1\nrun: {seed: 9}\n");
};

TEST_F(Commands, ValidateSaysValid) {
  const Outcome outcome = call("validate " + good_);
  EXPECT_EQ(outcome.text, good_ + ": valid\n");
  EXPECT_EQ(outcome.exit_code, 0);
}

TEST_F(Commands, ValidateShowsEveryErrorAndEndsWithTwo) {
  const Outcome outcome = call("validate " + bad_ + " --optimizer.lr=x --data.seq_len 0");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.text, "\n" + bad_ + ":3:3: error: unknown key 'train.stpes'\n"));
  EXPECT_TRUE(has(outcome.text, "^~~~~ did you mean 'steps'?"));
  EXPECT_TRUE(has(outcome.text, "<command line>:--optimizer.lr: error:"));
  EXPECT_TRUE(has(outcome.text, "<command line>:--data.seq_len: error:"));
  EXPECT_TRUE(has(outcome.text, "'data.train' needs at least one entry"));
  EXPECT_EQ(call("validate").exit_code, 2);
  EXPECT_EQ(call("validate " + directory_.path() + "/missing.yaml").exit_code, 2);
}

TEST_F(Commands, ValuesAfterKeysAreNoFiles) {
  const Outcome outcome = call("validate --train.steps 100 " + good_);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_EQ(outcome.text, good_ + ": valid\n");
  EXPECT_EQ(call("validate " + good_ + " " + more_).text, good_ + " + " + more_ + ": valid\n");
}

TEST_F(Commands, PrintConfigShowsOrigins) {
  const Outcome all = call("print-config " + good_ + " " + more_ + " --train.steps=50");
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_TRUE(has(all.text, "  steps: 50  # --train.steps\n"));
  EXPECT_TRUE(has(all.text, concat("  seed: 9  # ", more_, ":2\n")));
  EXPECT_TRUE(has(all.text, "  lr: 3.0e-04  # default\n"));
  const Outcome changed = call("print-config --diff --train.steps=50 " + good_);
  EXPECT_TRUE(has(changed.text, "  steps: 50  # --train.steps\n"));
  EXPECT_FALSE(has(changed.text, "lr:"));
  EXPECT_EQ(call("print-config").exit_code, 0);
}

TEST_F(Commands, SchemaAndHelpListTheKeys) {
  EXPECT_EQ(call("schema").text, json_schema());
  const Outcome help = call("validate --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string& path : key_paths()) EXPECT_TRUE(has(help.text, "--" + path + "\n"));
}

TEST_F(Commands, EnvironmentIsChecked) {
  ASSERT_EQ(setenv("DELTAPORT_TRAIN__STPES", "5", 1), 0);
  const Outcome outcome = call("validate " + good_);
  unsetenv("DELTAPORT_TRAIN__STPES");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.text, "did you mean 'DELTAPORT_TRAIN__STEPS'?"));
}

}  // namespace
}  // namespace deltaport::test
