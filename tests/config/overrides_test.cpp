// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

namespace deltaport::test {
namespace {

TEST(Overrides, ThreeSpellings) {
  EXPECT_EQ(load_arguments({"--train.steps=50"}).config.train.steps, 50);
  EXPECT_EQ(load_arguments({"--train.steps", "50"}).config.train.steps, 50);
  EXPECT_EQ(load_arguments({"--set", "train.steps=50"}).config.train.steps, 50);
  EXPECT_EQ(load_arguments({"--set=train.steps=50"}).config.train.steps, 50);
  EXPECT_EQ(load_arguments({"--train.steps=50", "--train.steps=60"}).config.train.steps, 60);
}

TEST(Overrides, ValuesAreYaml) {
  const RunConfig c =
      load_arguments({"--model.layer_pattern=[gdn2, attention]", "--optimizer.betas=[0.5,0.6]",
                      "--eval.at_start=false", "--data.train=[{path: a}, {path: b, weight: 2}]",
                      "--checkpoint.dir=null", "--optimizer.lr=1e-5", "--data.seq_len=2Ki",
                      "--logging={every: 5, jsonl: false}"})
          .config;
  EXPECT_EQ(c.model.layer_pattern.size(), 2u);
  EXPECT_EQ(c.optimizer.beta2, 0.6);
  EXPECT_FALSE(c.eval.at_start);
  ASSERT_EQ(c.data.train.size(), 2u);
  EXPECT_EQ(c.data.train[1].weight, 2.0);
  EXPECT_EQ(c.checkpoint.dir, "runs/run/checkpoints");
  EXPECT_EQ(c.optimizer.lr, 1e-5);
  EXPECT_EQ(c.data.seq_len, 2048);
  EXPECT_EQ(c.logging.every, 5);
  EXPECT_FALSE(c.logging.jsonl);
}

TEST(Overrides, TextNeedsNoQuotes) {
  EXPECT_EQ(load_arguments({"--run.name=12"}).config.run.name, "12");
  EXPECT_EQ(load_arguments({"--run.name=a: b # c"}).config.run.name, "a: b # c");
  EXPECT_EQ(load_arguments({"--run.name=\"quoted\""}).config.run.name, "quoted");
  EXPECT_EQ(load_arguments({"--run.name", "true"}).config.run.name, "true");
  EXPECT_EQ(load_arguments({"--run.name=null"}).config.run.name,
            "null");  // not an optional key: a name like any other
}

TEST(Overrides, UnknownKeysHavePlaceAndGuess) {
  const std::string report =
      argument_report({"--train.stpes=5", "--trian.steps=5", "--lr=1", "--zzzzzz.steps=1"});
  EXPECT_TRUE(
      has(report,
          "<command line>:--train.stpes: error: unknown key 'train.stpes'\n  did you mean 'train.steps'?"));
  EXPECT_TRUE(has(report, "<command line>:--trian.steps: error: unknown key 'trian.steps'\n"));
  EXPECT_TRUE(has(report, "did you mean 'train.steps'?"));
  EXPECT_TRUE(
      has(report, "<command line>:--lr: error: unknown key 'lr'\n  the key is known as 'optimizer.lr'"));
  EXPECT_TRUE(has(report, "unknown key 'zzzzzz.steps'\n  the key is known as 'train.steps'"));
}

TEST(Overrides, WrongValuesHaveThePlaceOfTheArgument) {
  const std::string report =
      argument_report({"--train.steps=many", "--eval.at_end=yes", "--set", "data.seq_len=0"});
  EXPECT_TRUE(
      has(report, "<command line>:--train.steps: error: 'train.steps' must be an integer, found 'many'"));
  EXPECT_TRUE(has(report,
                  "<command line>:--eval.at_end: error: 'eval.at_end' must be true or false, found 'yes'\n"
                  "  write true"));
  EXPECT_TRUE(has(report, "<command line>:--set data.seq_len: error: 'data.seq_len' must be >= 1"));
  EXPECT_TRUE(has(argument_report({"--model.layer_pattern=[gdn"}),
                  "<command line>:--model.layer_pattern: error: not "
                  "valid YAML"));
  EXPECT_TRUE(has(argument_report({"--train.steps=''"}),
                  "'train.steps' must be an integer, found the quoted text ''"));
  EXPECT_TRUE(has(argument_report({"--train=5"}), "'train' is a section, found '5'"));
}

TEST(Overrides, EmptyValuesHaveThePlaceOfTheArgument) {
  EXPECT_TRUE(has(argument_report({"--train.steps="}),
                  "<command line>:--train.steps: error: 'train.steps' must be an integer, found nothing"));
  EXPECT_TRUE(
      has(argument_report({"--set", "train.steps="}),
          "<command line>:--set train.steps: error: 'train.steps' must be an integer, found nothing"));
  EXPECT_TRUE(has(argument_report({"--train="}), "<command line>:--train: error: 'train' is a section"));
  EXPECT_TRUE(has(argument_report({"--optimizer.betas="}), "<command line>:--optimizer.betas: error: "));
  EXPECT_TRUE(has(argument_report({"--train.steps= # none"}), "<command line>:--train.steps: error: "));
  EXPECT_TRUE(
      has(argument_report({}, {{"DELTAPORT_TRAIN__STEPS", ""}}),
          "<environment>:DELTAPORT_TRAIN__STEPS: error: 'train.steps' must be an integer, found nothing"));
}

TEST(Overrides, IncompleteArguments) {
  EXPECT_TRUE(has(argument_report({"--train.steps"}), "<command line>:--train.steps: error: needs a value"));
  EXPECT_TRUE(has(argument_report({"--train.steps", "--run.seed=1"}), "--train.steps: error: needs a value"));
  EXPECT_TRUE(has(argument_report({"--set"}), "needs a value"));
  EXPECT_TRUE(has(argument_report({"--set", "train.steps"}), "needs KEY=VALUE"));
  EXPECT_TRUE(has(argument_report({"train.steps=5"}), "unexpected argument"));
  EXPECT_TRUE(has(argument_report({"-x"}), "unexpected argument"));
  EXPECT_TRUE(has(argument_report({"--resmue"}), "unknown key 'resmue'"));
  EXPECT_TRUE(has(argument_report({"--"}), "unexpected argument"));
  EXPECT_TRUE(has(argument_report({"--=5"}), "unknown key ''"));
}

TEST(Overrides, NegativeNumbersAreValues) {
  EXPECT_TRUE(has(argument_report({"--optimizer.weight_decay", "-1"}), "must be >= 0, found -1"));
}

TEST(SplitArguments, KeepsValuesWithTheirKeys) {
  const ConfigArguments a = split_arguments(
      {"a.yaml", "--train.steps", "100", "b.yaml", "--run.name=x", "--set", "run.seed=2", "c.yaml", "-q"});
  EXPECT_EQ(a.files, (std::vector<std::string>{"a.yaml", "b.yaml", "c.yaml"}));
  EXPECT_EQ(a.overrides,
            (std::vector<std::string>{"--train.steps", "100", "--run.name=x", "--set", "run.seed=2", "-q"}));
}

}  // namespace
}  // namespace deltaport::test
