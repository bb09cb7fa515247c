// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

namespace deltaport::test {
namespace {

TEST(Interpolation, KeysAndVariables) {
  const LoadedConfig loaded = load_text(R"(version: 1
run: {name: exp, dir: "out/${run.name}-${env:JOB}"}
data:
  train:
    - path: ${run.dir}/data/${env:PART:-train}
checkpoint: {dir: "${run.dir}/ckpt-${optimizer.lr}"}
optimizer: {lr: 3.0e-4}
)",
                                        {}, {{"JOB", "42"}});
  EXPECT_EQ(loaded.config.run.dir, "out/exp-42");
  EXPECT_EQ(loaded.config.data.train[0].path, "out/exp-42/data/train");
  EXPECT_EQ(loaded.config.checkpoint.dir, "out/exp-42/ckpt-3.0e-4");  // as written
  EXPECT_EQ(loaded.environment.at("JOB"), "42");
}

TEST(Interpolation, WorksForEveryType) {
  const RunConfig c = load_text(R"(version: 1
model: {hidden_size: "${env:WIDTH}", layer_pattern: ["${env:MIXER}"], tie_word_embeddings: "${env:TIED:-false}"}
)",
                                {}, {{"WIDTH", "64"}, {"MIXER", "gdn2"}})
                          .config;
  EXPECT_EQ(c.model.hidden_size, 64);
}

TEST(Interpolation, AppliesAfterOverrides) {
  EXPECT_EQ(load_text("version: 1\nrun: {dir: 'a/${run.name}'}\n", {"--run.name=z"}).config.run.dir, "a/z");
  EXPECT_EQ(load_arguments({"--run.dir=${env:D}/x"}, {{"D", "/d"}}).config.run.dir, "/d/x");
  EXPECT_EQ(load_arguments({"--run.name=n"}).config.run.dir, "runs/n");  // a default made of other keys
  EXPECT_EQ(load_arguments({"--run.dir=d"}).config.checkpoint.dir, "d/checkpoints");
}

TEST(Interpolation, DefaultTextStandsInForUnsetAndEmpty) {
  EXPECT_EQ(load_arguments({"--run.name=${env:A:-b}"}).config.run.name, "b");
  EXPECT_EQ(load_arguments({"--run.name=${env:A:-b}"}, {{"A", ""}}).config.run.name, "b");
  EXPECT_EQ(load_arguments({"--run.name=x${env:A}"}, {{"A", ""}}).config.run.name, "x");
  EXPECT_EQ(load_arguments({"--run.name=x${env:A:-}"}).config.run.name, "x");
  EXPECT_EQ(load_arguments({"--run.name=a:-b"}).config.run.name, "a:-b");
}

TEST(Interpolation, ValuesOfVariablesAreNotExpandedAgain) {
  EXPECT_EQ(load_arguments({"--run.name=${env:A}"}, {{"A", "${run.dir}"}}).config.run.name, "${run.dir}");
}

TEST(Interpolation, Errors) {
  EXPECT_TRUE(has(report_of("version: 1\nrun:\n  name: ${env:NOPE}\n"),
                  "run.yaml:3:9: error: environment variable 'NOPE' is not set"));
  EXPECT_TRUE(has(report_of("version: 1\nrun:\n  dir: ${run.nmae}\n"), "did you mean '${run.name}'?"));
  EXPECT_TRUE(has(report_of("version: 1\nrun:\n  dir: ${run}\n"), "'${run}' is a section"));
  EXPECT_TRUE(has(report_of("version: 1\nrun:\n  dir: ${data.train}\n"), "is a list"));
  EXPECT_TRUE(has(report_of("version: 1\nrun:\n  dir: x${run.name\n"), "'${' without '}'"));
  EXPECT_TRUE(has(report_of("version: 1\nrun:\n  dir: ${}\n"), "'${}' is not a key"));
  EXPECT_TRUE(
      has(argument_report({"--train.steps=${env:A}"}, {{"A", "abc"}}), "must be an integer, found 'abc'"));
}

TEST(Interpolation, CyclesAreErrors) {
  EXPECT_TRUE(has(report_of("version: 1\nrun:\n  dir: a/${run.dir}\n"),
                  "run.yaml:3:8: error: ${...} refers to itself: run.dir -> run.dir"));
  EXPECT_TRUE(has(report_of("version: 1\nrun: {name: '${run.dir}', dir: '${checkpoint.dir}'}\n"
                            "checkpoint: {dir: '${run.name}'}\n"),
                  "refers to itself: run.name -> run.dir -> checkpoint.dir -> run.name"));
  EXPECT_TRUE(
      has(argument_report({"--run.name=${run.dir}"}), "refers to itself"));  // through run.dir's default
}

TEST(Interpolation, GrowthIsBounded) {
  std::string many;
  for (int i = 0; i < 300; ++i) many += "${env:A}";
  EXPECT_TRUE(
      has(argument_report({"--run.name=" + many}, {{"A", std::string(1000, 'a')}}), "longer than 64 KiB"));
}

}  // namespace
}  // namespace deltaport::test
