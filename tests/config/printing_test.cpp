// SPDX-License-Identifier: Apache-2.0
#include "config/field.hpp"
#include "deltaport/config/schema.hpp"
#include "support.hpp"

namespace deltaport::test {
namespace {

void expect_equal(const RunConfig& a, const RunConfig& b) {
  for (const config::Field& field : config::fields())
    EXPECT_TRUE(config::same_value(field.binding.get(a), field.binding.get(b))) << field.path;
}

TEST(Print, ShowsValuesWithOrigins) {
  const LoadedConfig loaded =
      load_text("version: 1\ntrain:\n  steps: 50\ndata: {train: [{path: p, weight: 2}]}\n",
                {"--optimizer.lr=0.001"}, {{"DELTAPORT_RUN__SEED", "3"}});
  const std::string text = loaded.print();
  EXPECT_TRUE(has(text, "\ntrain:\n  steps: 50  # "));
  EXPECT_TRUE(has(text, "/run.yaml:3\n"));
  EXPECT_TRUE(has(text, "  lr: 0.001  # --optimizer.lr\n"));
  EXPECT_TRUE(has(text, "  seed: 3  # environment\n"));
  EXPECT_TRUE(has(text, "  eps: 1.0e-08  # default\n"));
  EXPECT_TRUE(has(text, "    - {path: \"p\", weight: 2.0}\n"));
  EXPECT_TRUE(has(text, "  dir: \"runs/run/checkpoints\"  # default\n"));
}

TEST(Print, ChangedKeysOnly) {
  EXPECT_EQ(load_arguments({"--train.steps=50", "--eval.at_start=true", "--model.linear.chunk_size=16"})
                .print(PrintKeys::changed),
            "version: 1  # default\n"
            "model:\n"
            "  linear:\n"
            "    chunk_size: 16  # --model.linear.chunk_size\n"
            "train:\n"
            "  steps: 50  # --train.steps\n");
}

TEST(Print, BothFormsLoadAgain) {
  const LoadedConfig loaded = load_text(R"(version: 1
run: {name: "a \"b\" \\ c: d # e", dir: "d/ü"}
model: {preset: qwen3.5-9b, layer_pattern: [gdn2, attention], rms_norm_eps: 1.23456789e-5}
data: {train: [{path: "x y", weight: 0.1}, {path: z}], valid: [{path: v}], seq_len: 64}
optimizer: {lr: 0.1, betas: [0.30000000000000004, 0.7]}
schedule: {name: wsd, decay: 7}
)");
  expect_equal(parse_canonical(loaded.canonical_yaml()), loaded.config);
  expect_equal(load_text(loaded.print()).config, loaded.config);
  expect_equal(load_text(loaded.print(PrintKeys::changed)).config, loaded.config);
}

TEST(Print, CanonicalTextIsNotInterpolated) {
  const LoadedConfig loaded = load_arguments({"--run.name=${env:A}"}, {{"A", "${run.dir}"}});
  EXPECT_EQ(parse_canonical(loaded.canonical_yaml()).run.name, "${run.dir}");
}

TEST(Print, DefaultsRoundTrip) {
  const RunConfig again = parse_canonical(canonical_yaml(RunConfig{}));
  EXPECT_EQ(canonical_yaml(again), canonical_yaml(load_arguments({}).config));
}

TEST(KeyReference, ListsEveryKey) {
  const std::string text = key_reference();
  EXPECT_GT(key_paths().size(), 50u);
  for (const std::string& path : key_paths()) EXPECT_TRUE(has(text, "  --" + path + "\n"));
  EXPECT_TRUE(has(text, "constant|cosine|wsd, default cosine"));
  EXPECT_TRUE(has(text, ">= 2, default 2"));
  EXPECT_FALSE(has(text, ": \n"));  // a section without a title
}

}  // namespace
}  // namespace deltaport::test
