// SPDX-License-Identifier: Apache-2.0
// What YAML libraries let through and a run's description must not.
#include "support.hpp"

namespace deltaport::test {
namespace {

TEST(YamlRules, DuplicatesShowBothPlaces) {
  const std::string report = report_of("version: 1\ntrain:\n  steps: 50\n  micro_batch: 1\n  steps: 60\n");
  EXPECT_TRUE(has(report, "run.yaml:5:3: error: duplicate key 'train.steps', first set at run.yaml:3:3"));
}

TEST(YamlRules, DuplicateSectionsAndFlowKeys) {
  EXPECT_TRUE(has(report_of("train: {steps: 50}\nrun: {seed: 1}\ntrain: {micro_batch: 1}\n"),
                  "run.yaml:3:1: error: duplicate key 'train', first set at run.yaml:1:1"));
  EXPECT_TRUE(
      has(report_of("train: {steps: 50, steps: 60}\n"), "run.yaml:1:20: error: duplicate key 'train.steps'"));
  EXPECT_TRUE(has(report_of("train: {steps: 50, 'steps': 60}\n"), "duplicate key 'train.steps'"));
}

TEST(YamlRules, MergeKeysAreRefused) {
  const std::string report = report_of("run: &a {seed: 1}\ntrain:\n  <<: *a\n  steps: 50\n");
  EXPECT_TRUE(has(report, "run.yaml:3:3: error: merge keys ('<<') are not supported"));
}

TEST(YamlRules, SecondDocumentsAndTrailingTextAreRefused) {
  EXPECT_TRUE(has(report_of("version: 1\n---\nrun: {seed: 2}\n"), "run.yaml:2:1: error: text after the end"));
  EXPECT_TRUE(has(report_of("version: 1\n...\njunk: 2\n"), "run.yaml:3:1: error: text after the end"));
  EXPECT_TRUE(has(report_of("- 1\nversion: 1\n"), "error:"));
}

TEST(YamlRules, TagsAreRefused) {
  EXPECT_TRUE(has(report_of("train: {steps: !!int 50}\n"), "run.yaml:1:16: error: tags are not supported"));
  EXPECT_TRUE(has(report_of("run: {name: !!str 50}\n"), "error: tags are not supported"));
  EXPECT_TRUE(has(report_of("train: !mine {steps: 50}\n"), "error: tags are not supported"));
}

TEST(YamlRules, KeysMustBeText) {
  EXPECT_TRUE(has(report_of("? [a, b]\n: 1\n"), "error: a key must be plain text"));
  EXPECT_TRUE(has(report_of("{a: 1}: 1\n"), "error: a key must be plain text"));
  EXPECT_TRUE(has(report_of("~: 1\n"), "error: a key must be plain text"));
}

TEST(YamlRules, RootMustBeAMapping) {
  EXPECT_TRUE(has(report_of("just text\n"), "run.yaml:1:1: error: the file must be a mapping of sections"));
  EXPECT_TRUE(has(report_of("- 1\n- 2\n"),
                  "run.yaml:1:1: error: the file must be a mapping of sections, found a list"));
}

TEST(YamlRules, AliasesWork) {
  const LoadedConfig loaded =
      load_text("version: 1\nmodel:\n  linear: {key_head_dim: &d 32, value_head_dim: *d}\n");
  EXPECT_EQ(loaded.config.model.linear.value_head_dim, 32);
  EXPECT_TRUE(has(report_of("run: &a {name: *a}\n"), "refers to the node that it is part of"));
  EXPECT_TRUE(has(report_of("run: {name: *nothing}\n"), "not valid YAML"));
}

TEST(YamlRules, SyntaxErrorsHaveTheSameForm) {
  const std::string report = report_of("version: 1\nrun: {name: a\ntrain: {steps: 5}\n");
  EXPECT_TRUE(has(report, "run.yaml:"));
  EXPECT_TRUE(has(report, ": error: not valid YAML: "));
  EXPECT_TRUE(has(report_of("train:\n\tsteps: 5\n"), "not valid YAML"));
  EXPECT_TRUE(has(report_of("train: steps: 5\n"), "run.yaml:1:13: error: not valid YAML: a second ':'"));
}

TEST(YamlRules, UnquotedReferencesInFlowMapsAreExplained) {
  const std::string report = report_of("version: 1\ncheckpoint: {dir: ${run.dir}/ckpt, every: 5}\n");
  EXPECT_TRUE(has(report, "run.yaml:2:"));
  EXPECT_TRUE(has(report, "need quotes"));
}

TEST(YamlRules, MissingVersionIsAWarning) {
  const LoadedConfig loaded = load_text("run: {seed: 1}\n");
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_TRUE(has(loaded.warnings[0], "run.yaml: warning: no 'version', assuming 1"));
  EXPECT_TRUE(load_text("version: 1\n").warnings.empty());
  EXPECT_TRUE(has(report_of("version: 2\n"), "run.yaml:1:10: error: 'version' must be 1, found 2"));
}

TEST(YamlRules, FieldsOfEveryTypeAreRead) {
  const RunConfig c = load_text(R"(version: 1
run: {name: "010", dir: runs/x, seed: 9_000}
model: {layer_pattern: [gdn, gdn2, attention], tie_word_embeddings: false, rms_norm_eps: 1E-5, linear: {chunk_size: 16}}
data:
  train:
    - {path: a, weight: 2.5}
    - path: b
  seq_len: 1Ki
train: {steps: 1e3, global_batch_tokens: 64Ki, on_nonfinite: skip}
optimizer: {lr: 1e-5, betas: [.8, 0.9]}
schedule: {name: wsd, decay: 10}
recurrence: {implementation: reference}
attention: {implementation: cudnn}
checkpoint: {resume: auto, verify_hashes: false}
)")
                          .config;
  EXPECT_EQ(c.run.name, "010");
  EXPECT_EQ(c.run.seed, 9000u);
  const std::vector<LayerType> pattern = {LayerType::gdn, LayerType::gdn2, LayerType::attention};
  EXPECT_EQ(c.model.layer_pattern, pattern);
  EXPECT_FALSE(c.model.tie_word_embeddings);
  EXPECT_EQ(c.model.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.model.linear.chunk_size, 16);
  ASSERT_EQ(c.data.train.size(), 2u);
  EXPECT_EQ(c.data.train[0].weight, 2.5);
  EXPECT_EQ(c.data.train[1].path, "b");
  EXPECT_EQ(c.data.train[1].weight, 1.0);
  EXPECT_EQ(c.data.seq_len, 1024);
  EXPECT_EQ(c.train.steps, 1000);
  EXPECT_EQ(c.train.global_batch_tokens, 65536);
  EXPECT_EQ(c.train.on_nonfinite, OnNonFinite::skip);
  EXPECT_EQ(c.optimizer.lr, 1e-5);
  EXPECT_EQ(c.optimizer.beta1, 0.8);
  EXPECT_EQ(c.optimizer.beta2, 0.9);
  EXPECT_EQ(c.schedule.name, ScheduleName::wsd);
  EXPECT_EQ(c.recurrence.implementation, RecurrenceName::reference);
  EXPECT_EQ(c.attention.implementation, AttentionName::cudnn);
  EXPECT_EQ(c.checkpoint.dir, "runs/x/checkpoints");
  EXPECT_EQ(c.checkpoint.resume, "auto");
}

}  // namespace
}  // namespace deltaport::test
