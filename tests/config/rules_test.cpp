// SPDX-License-Identifier: Apache-2.0
// Rules between keys, their places, and the check against the number of ranks.
#include "deltaport/config/checks.hpp"
#include "support.hpp"

namespace deltaport::test {
namespace {

TEST(Rules, BatchMustDivide) {
  const std::string report = report_of(
      "version: 1\ndata: {seq_len: 100}\ntrain: {global_batch_tokens: 1000, "
      "micro_batch: 3}\n");
  EXPECT_TRUE(
      has(report,
          "run.yaml:3:30: error: 'train.global_batch_tokens' = 1000 must be a multiple of data.seq_len * "
          "train.micro_batch = 100 * 3 = 300"));
  EXPECT_TRUE(has(argument_report({"--data.seq_len=1000"}),
                  "<command line>:--data.seq_len: error: "
                  "'train.global_batch_tokens' = 8192"));
}

TEST(Rules, APassMustFitIntoInt32) {
  EXPECT_TRUE(has(argument_report({"--train.micro_batch=1M", "--data.seq_len=4Ki"}), "unit suffixes"));
  EXPECT_TRUE(has(argument_report({"--train.micro_batch=1_000_000", "--data.seq_len=4Ki"}),
                  "'train.micro_batch' * data.seq_len = 1000000 * 4096 is more than one pass can hold"));
}

TEST(Rules, HeadsMustDivide) {
  EXPECT_TRUE(has(argument_report({"--model.linear.num_value_heads=6"}),
                  "= 6 must be a multiple of num_key_heads = 4"));
  EXPECT_TRUE(has(argument_report({"--model.attention.num_kv_heads=3"}),
                  "= 4 must be a multiple of num_kv_heads = 3"));
  EXPECT_EQ(load_arguments({"--model.linear.num_value_heads=8"}).config.model.linear.num_value_heads, 8);
}

TEST(Rules, RotaryDimensionsMustBeEven) {
  for (const char* factor : {"0.25", "0.5", "1.0", "0.03125", "1"})
    EXPECT_NO_THROW(load_arguments({std::string("--model.attention.partial_rotary_factor=") + factor}))
        << factor;
  for (const char* factor : {"0.015625", "0.26", "0.001"})
    EXPECT_TRUE(has(argument_report({std::string("--model.attention.partial_rotary_factor=") + factor}),
                    "must be an even number of rotary dimensions"));
  EXPECT_TRUE(has(argument_report({"--model.attention.partial_rotary_factor=0"}), "must be > 0 and <= 1"));
}

TEST(Rules, ChunkSizesAreThree) {
  for (const char* size : {"16", "32", "64"})
    EXPECT_NO_THROW(load_arguments({std::string("--model.linear.chunk_size=") + size}));
  EXPECT_TRUE(has(argument_report({"--model.linear.chunk_size=48"}), "must be one of 16, 32, 64, found 48"));
}

TEST(Rules, ScheduleMustFitIntoTheRun) {
  EXPECT_TRUE(has(argument_report({"--train.steps=10"}),
                  "'schedule.warmup' = 10 must be less than train.steps = 10"));
  EXPECT_TRUE(
      has(argument_report({"--schedule.decay=5"}), "'schedule.decay' = 5 is only for schedule.name wsd"));
  EXPECT_TRUE(
      has(argument_report({"--schedule.name=wsd"}), "'schedule.decay' must be >= 1 with schedule.name wsd"));
  EXPECT_TRUE(has(argument_report({"--schedule.name=wsd", "--schedule.decay=91"}),
                  "must not exceed train.steps = 100"));
  EXPECT_EQ(load_arguments({"--schedule.name=wsd", "--schedule.decay=90"}).config.schedule.decay, 90);
}

TEST(Rules, KeepAtLeastTwoCheckpoints) {
  EXPECT_TRUE(
      has(argument_report({"--checkpoint.keep_last=1"}), "'checkpoint.keep_last' must be >= 2, found 1"));
}

TEST(Rules, PeriodicEvaluationNeedsData) {
  EXPECT_TRUE(has(argument_report({"--eval.every=10"}), "'eval.every' = 10 needs token files in data.valid"));
  EXPECT_NO_THROW(load_arguments({"--eval.every=10", "--data.valid=[{path: v}]"}));
}

TEST(Rules, OffloadTakesNumbersThatMakeSense) {
  EXPECT_TRUE(has(argument_report({"--offload.fraction=1.5"}), "'offload.fraction' must be >= 0 and <= 1"));
  EXPECT_TRUE(has(argument_report({"--offload.fraction=-0.1"}), "'offload.fraction' must be >= 0 and <= 1"));
  for (const char* key : {"min_tensor_elements", "keep_last", "max_inflight", "pinned_limit"})
    EXPECT_TRUE(
        has(argument_report({concat("--offload.", key, "=-1")}), concat("'offload.", key, "' must be >= 0")))
        << key;
  EXPECT_TRUE(has(argument_report({"--offload.slots=0"}), "'offload.slots' must be >= 1"));
  EXPECT_TRUE(has(argument_report({"--offload.slots=2", "--offload.max_inflight=3"}),
                  "'offload.max_inflight' = 3 must not exceed offload.slots = 2"));
  const RunConfig c = load_arguments({"--offload.fraction=0.5", "--offload.slots=3"}).config;
  EXPECT_EQ(c.offload.fraction, 0.5);
  EXPECT_FALSE(c.offload.enabled);
}

TEST(Rules, OffloadScopesExistOnceAndInTheModel) {
  EXPECT_TRUE(has(argument_report({"--offload.scopes=[gdn_core_atn]"}), "gdn_core_attn"));
  EXPECT_TRUE(has(argument_report({"--offload.scopes=[gdn_core_atn]"}), "did you mean"));
  EXPECT_TRUE(has(argument_report({"--offload.scopes=[]"}), "offload.scopes"));
  EXPECT_TRUE(has(argument_report({"--offload.scopes=[mlp, mlp]"}), "'offload.scopes' lists mlp twice"));
  const std::vector<std::string> attention_only = {"--model.layer_pattern=[attention]",
                                                   "--offload.enabled=true"};
  for (const char* scope : {"gdn_core_attn", "norm_out"}) {
    auto arguments = attention_only;
    arguments.push_back(concat("--offload.scopes=[", scope, "]"));
    EXPECT_TRUE(
        has(argument_report(arguments), concat("lists ", scope, ", but the model has no gdn or gdn2 layer")));
  }
  EXPECT_TRUE(has(argument_report({"--model.layer_pattern=[gdn2]", "--offload.enabled=true",
                                   "--offload.scopes=[attn_core]"}),
                  "lists attn_core, but the model has no attention layer"));
  EXPECT_NO_THROW(load_arguments({"--model.layer_pattern=[attention]"}));  // not enabled
}

TEST(Rules, OffloadGoesWithEveryGraphScopeButForTheMlpBetweenMixers) {
  const auto with = [](const char* graph, const char* scopes) {
    return std::vector<std::string>{"--offload.enabled=true", concat("--graph.scope=", graph),
                                    concat("--offload.scopes=[", scopes, "]")};
  };
  for (const char* graph : {"attention", "layer", "step"})
    EXPECT_NO_THROW(load_arguments(with(graph, "gdn_core_attn, norm_out")));
  for (const char* graph : {"none", "layer", "step"})
    EXPECT_NO_THROW(load_arguments(with(graph, "gdn_core_attn, mlp")));
  EXPECT_TRUE(has(argument_report(with("attention", "gdn_core_attn, mlp")),
                  "'offload.scopes' lists mlp, which graph.scope = attention leaves out"));
}

// Recomputing whole layers leaves nothing to move; there is no such key, so nobody can ask for both.
TEST(Rules, FullRecomputeIsRefused) {
  EXPECT_TRUE(has(argument_report({"--recompute=full", "--offload.enabled=true"}), "recompute"));
  EXPECT_TRUE(has(argument_report({"--recompute.full=true"}), "recompute.full"));
}

TEST(Rules, WhatIsRecomputedCannotMove) {
  EXPECT_TRUE(
      has(argument_report({"--recompute.gdn_core_inputs=all", "--offload.enabled=true"}),
          "'recompute.gdn_core_inputs' = all leaves nothing for gdn_core_attn of 'offload.scopes' to move"));
  EXPECT_NO_THROW(load_arguments({"--recompute.gdn_core_inputs=all"}));
  // What the preparation makes is kept in bfloat16 alone.
  for (const char* precision : {"bfloat16", "float32"}) {
    const std::vector<std::string> arguments{"--recompute.gdn_core_inputs=all", "--offload.enabled=true",
                                             "--recompute.gdn_preparation=false",
                                             concat("--train.precision=", precision)};
    if (precision == std::string("bfloat16"))
      EXPECT_NO_THROW(load_arguments(arguments));
    else
      EXPECT_TRUE(has(argument_report(arguments), "leaves nothing for gdn_core_attn"));
  }
  EXPECT_NO_THROW(load_arguments(
      {"--recompute.gdn_core_inputs=all", "--offload.enabled=true", "--offload.scopes=[norm_out]"}));
  for (const char* again : {"none", "gates"})
    EXPECT_NO_THROW(
        load_arguments({concat("--recompute.gdn_core_inputs=", again), "--offload.enabled=true"}));
  EXPECT_TRUE(has(argument_report({"--recompute.gdn_core_inputs=gate"}), "gates"));
}

TEST(Rules, ABrokenKeySilencesRulesAboutIt) {
  EXPECT_TRUE(has(argument_report({"--model.linear.num_key_heads=0"}), "has 1 error\n"));
}

TEST(CheckConfig, ListsEveryProblemOfAConfigurationMadeInCode) {
  EXPECT_NO_THROW(check_config(RunConfig{}));
  RunConfig c;
  c.model.hidden_size = 0;
  c.model.linear.chunk_size = 17;
  c.model.linear.num_value_heads = 5;
  c.model.layer_pattern.clear();
  c.optimizer.beta2 = 1.0;
  c.data.train = {{"", 1.0}};
  try {
    check_config(c);
    FAIL();
  } catch (const ConfigError& e) {
    for (const char* part :
         {"6 errors", "'model.hidden_size' = 0 must be >= 1", "'model.linear.chunk_size' = 17",
          "'model.layer_pattern'", "'optimizer.betas'", "'data.train'", "num_key_heads = 4"})
      EXPECT_TRUE(has(e.what(), part));
  }
}

TEST(CheckRanks, GivesTheAccumulationOrNamesAllFactors) {
  RunConfig c;
  c.data.seq_len = 128;
  c.train.micro_batch = 2;
  c.train.global_batch_tokens = 128 * 2 * 6;
  EXPECT_EQ(check_ranks(c, 1), 6);
  EXPECT_EQ(check_ranks(c, 2), 3);
  EXPECT_EQ(check_ranks(c, 6), 1);
  try {
    check_ranks(c, 4);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_TRUE(
        has(e.what(),
            "train.global_batch_tokens = 1536 must be a multiple of data.seq_len * train.micro_batch * "
            "ranks = 128 * 2 * 4 = 1024"));
  }
  EXPECT_THROW(check_ranks(c, 12), ConfigError);
  EXPECT_THROW(check_ranks(c, 0), ConfigError);
}

TEST(Rules, GraphsNeedAWarmUpAndSomethingToCapture) {
  EXPECT_TRUE(
      has(argument_report({"--graph.scope=layer", "--graph.warmup_steps=0"}),
          "'graph.warmup_steps' must be >= 1 with graph.scope layer: an eager step loads the kernels"));
  EXPECT_TRUE(has(argument_report({"--graph.scope=step", "--graph.warmup_steps=100"}),
                  "'graph.warmup_steps' = 100 leaves none of train.steps = 100 to be captured"));
  EXPECT_NO_THROW(load_arguments({"--graph.scope=step", "--graph.warmup_steps=99"}));
  EXPECT_NO_THROW(load_arguments({"--graph.scope=none", "--graph.warmup_steps=0"}));
}

TEST(Rules, GraphKeysHaveWordsAndRanges) {
  for (const char* scope : {"none", "attention", "layer", "step"})
    EXPECT_NO_THROW(load_arguments({std::string("--graph.scope=") + scope}));
  EXPECT_TRUE(has(argument_report({"--graph.scope=layers"}), "graph.scope"));
  EXPECT_TRUE(has(argument_report({"--graph.scope=layers"}), "none, attention, layer, step"));
  EXPECT_TRUE(has(argument_report({"--graph.on_failure=ignore"}), "error, eager"));
  EXPECT_TRUE(has(argument_report({"--graph.warmup_steps=-1"}), "graph.warmup_steps"));
  for (const char* bound : {"0", "-1"})
    EXPECT_TRUE(has(argument_report({std::string("--graph.max_shapes=") + bound}), "graph.max_shapes"));
  const auto graph =
      load_arguments({"--graph.scope=step", "--graph.on_failure=eager", "--graph.max_shapes=3"}).config.graph;
  EXPECT_EQ(graph.scope, GraphScope::step);
  EXPECT_EQ(graph.warmup_steps, 1);
  EXPECT_EQ(graph.on_failure, OnCaptureFailure::eager);
  EXPECT_EQ(graph.max_shapes, 3);
}

}  // namespace
}  // namespace deltaport::test
