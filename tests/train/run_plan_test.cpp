// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/run_plan.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "config/support.hpp"
#include "deltaport/model/hybrid_lm.hpp"
#include "deltaport/optim/adamw.hpp"
#include "deltaport/train/training_run.hpp"

namespace deltaport {
namespace {

using test::has;

RunConfig config_of(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"--model.preset=tiny", "--data.seq_len=64", "--train.micro_batch=1",
                                        "--schedule.warmup=0", "--train.global_batch_tokens=1536"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return test::load_arguments(arguments).config;
}

std::int64_t bytes_with(RunConfig config, int ranks, std::int64_t micro_batch) {
  config.train.micro_batch = micro_batch;
  return make_plan(config, ranks).total_bytes();
}

std::string error_of(const RunConfig& config) {
  try {
    make_plan(config, 1);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

// 1536 tokens are 24 samples: 12 for each of two ranks.
TEST(LargestMicroBatch, IsTheLargestDivisorThatFits) {
  const RunConfig config = config_of();
  for (const std::int64_t fits : {1, 2, 3, 4, 6, 12}) {
    EXPECT_EQ(largest_micro_batch(config, 2, bytes_with(config, 2, fits)), fits);
    EXPECT_LT(largest_micro_batch(config, 2, bytes_with(config, 2, fits) - 1), fits);
  }
  EXPECT_EQ(largest_micro_batch(config, 2, bytes_with(config, 2, 1) - 1), 0);
  EXPECT_EQ(largest_micro_batch(config, 2, 0), 0);
  EXPECT_EQ(largest_micro_batch(config, 2, std::numeric_limits<std::int64_t>::max()), 12);
}

TEST(LargestMicroBatch, SquaresAndPrimes) {
  const std::int64_t plenty = std::int64_t{1} << 50;
  for (const int samples : {1, 4, 25, 97}) {
    const RunConfig config = config_of({concat("--train.global_batch_tokens=", 64 * samples)});
    EXPECT_EQ(largest_micro_batch(config, 1, plenty), samples);
    EXPECT_EQ(largest_micro_batch(config, 1, bytes_with(config, 1, 1)), 1);
  }
}

// With as many samples as the schema allows, one try for each number up to them would take hours.
TEST(LargestMicroBatch, EndsForTheLargestBatches) {
  const RunConfig config = config_of({"--data.seq_len=1", "--train.global_batch_tokens=1000000000000"});
  const std::int64_t found = largest_micro_batch(config, 1, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(found, 16000000);  // the largest divisor of 10^12 that train.micro_batch may be
  const std::int64_t little = largest_micro_batch(config, 1, std::int64_t{64} << 20);
  EXPECT_EQ(1000000000000 % little, 0);
  EXPECT_LE(bytes_with(config, 1, little), std::int64_t{64} << 20);
}

TEST(RunPlan, MoreThanCanBeCountedIsAnError) {
  EXPECT_TRUE(has(error_of(config_of({"--data.seq_len=1", "--train.global_batch_tokens=1000000000000",
                                      "--train.steps=1000000000000"})),
                  "train.steps x train.global_batch_tokens"));
  EXPECT_TRUE(has(error_of(config_of({"--model.hidden_size=16777216", "--model.intermediate_size=16777216",
                                      "--model.num_hidden_layers=16"})),
                  "more than 2^50 parameters"));
  // Few parameters, but 2^31 tokens in one pass through wide layers: 2^64 bytes and more.
  EXPECT_TRUE(has(error_of(config_of({"--data.seq_len=127", "--train.micro_batch=16777216",
                                      "--train.global_batch_tokens=2130706432", "--model.hidden_size=8",
                                      "--model.intermediate_size=16777216", "--model.num_hidden_layers=64"})),
                  "2^55 bytes"));
}

std::int64_t entry(const RunPlan& plan, const std::string& name) {
  for (const SizeEntry& e : plan.static_memory)
    if (e.component == name) return e.amount;
  return 0;
}

/// What the arena holds under names that begin so.
std::int64_t held(Runtime& runtime, const std::string& name) {
  std::int64_t bytes = 0;
  for (const ArenaBlock& block : runtime.arena().live_blocks())
    if (block.name.rfind(name, 0) == 0) bytes += static_cast<std::int64_t>(block.bytes);
  return bytes;
}

template <class T>
void expect_static_memory(const RunConfig& config, const std::string& weights) {
  const RunPlan plan = make_plan(config, 1);
  Runtime runtime;
  HybridLm<T> model(config.model, lm_options(config));
  model.parameters().allocate(runtime);
  const AdamW<T> optimizer(runtime, model.parameters(), config.optimizer, 1.0);
  constexpr std::int64_t rounding = 256;  // of a block
  EXPECT_NEAR(static_cast<double>(entry(plan, weights)), static_cast<double>(held(runtime, "parameters")),
              rounding);
  EXPECT_NEAR(static_cast<double>(entry(plan, "master weights (float32)")),
              static_cast<double>(held(runtime, "master weights")), rounding);
  EXPECT_NEAR(static_cast<double>(entry(plan, "gradients (float32)")),
              static_cast<double>(held(runtime, "gradients")), rounding);
  EXPECT_NEAR(static_cast<double>(entry(plan, "AdamW moments (2 x float32)")),
              static_cast<double>(held(runtime, "optimizer exp_avg")), 2 * rounding);
  EXPECT_GT(held(runtime, "parameters"), 1000);
}

TEST(RunPlan, StaticMemoryIsWhatARunAllocates) {
  expect_static_memory<float>(config_of(), "weights (float32)");
  expect_static_memory<bfloat16>(config_of({"--train.precision=bfloat16"}), "weights (bfloat16)");
}

// 2 + 4 bytes a weight instead of 4, and activations about half as large: what is kept in float32 beside them
// is little.
TEST(RunPlan, Bfloat16TradesMastersForActivations) {
  const RunPlan single = make_plan(config_of(), 1),
                half = make_plan(config_of({"--train.precision=bfloat16"}), 1);
  EXPECT_EQ(half.parameter_count, single.parameter_count);
  EXPECT_EQ(entry(half, "master weights (float32)"), entry(single, "weights (float32)"));
  EXPECT_EQ(entry(half, "gradients (float32)"), entry(single, "gradients (float32)"));
  EXPECT_NEAR(static_cast<double>(entry(half, "weights (bfloat16)")) /
                  static_cast<double>(entry(single, "weights (float32)")),
              0.5, 0.01);
  const double saved = static_cast<double>(half.activations.saved_bytes()) /
                       static_cast<double>(single.activations.saved_bytes());
  EXPECT_GT(saved, 0.5);
  EXPECT_LT(saved, 0.56);
  const std::string text = plan_text(half, config_of({"--train.precision=bfloat16"}), 0.0);
  EXPECT_TRUE(has(text, "weights (bfloat16)"));
  EXPECT_TRUE(has(text, "master weights (float32)"));
}

TEST(RunPlan, OffloadLowersTheTotalByWhatMoves) {
  const std::vector<std::string> on = {"--offload.enabled=true", "--offload.min_tensor_elements=1",
                                       "--offload.slots=1", "--model.num_hidden_layers=8"};
  const RunPlan off_plan = make_plan(config_of({"--model.num_hidden_layers=8"}), 1);
  RunConfig config = config_of(on);
  const RunPlan plan = make_plan(config, 1);
  // Six of the eight layers are GDN; the last of them stays.
  EXPECT_EQ(plan.saved_groups, 6);
  EXPECT_EQ(plan.moving_groups, 5);
  EXPECT_GT(plan.offloaded_bytes, 0);
  EXPECT_EQ(plan.total_bytes(), off_plan.total_bytes() - plan.offloaded_bytes);
  EXPECT_TRUE(has(plan_text(plan, config, 0.0), "5 of 6 groups"));
  EXPECT_FALSE(has(plan_text(off_plan, config_of(), 0.0), "moved to the host"));
  config.offload.fraction = 0.4;
  EXPECT_EQ(make_plan(config, 1).moving_groups, 2);
  EXPECT_LT(make_plan(config, 1).offloaded_bytes, plan.offloaded_bytes);
  config.offload.min_tensor_elements = 1 << 30;
  EXPECT_EQ(make_plan(config, 1).offloaded_bytes, 0);
}

// What the device's recurrences keep besides is planned on any machine, by the name of the implementation.
TEST(RunPlan, CountsAKeptPreparation) {
  std::vector<std::string> arguments{"--train.precision=bfloat16", "--recurrence.implementation=cuda",
                                     "--model.linear.chunk_size=64"};
  const RunConfig without = config_of(arguments);
  arguments.push_back("--recompute.gdn_preparation=false");
  const RunConfig with = config_of(arguments);
  const auto saved = [](const RunConfig& config) { return make_plan(config, 1).activations.saved_bytes(); };
  recurrence::Options call;
  call.implementation = recurrence::Implementation::cuda;
  call.keep = recurrence::Keep::preparation;
  const auto& linear = with.model.linear;
  const std::int64_t tokens = with.train.micro_batch * with.data.seq_len, rows = with.train.micro_batch;
  std::int64_t expected = 0;
  for (std::int64_t i = 0; i < with.model.num_hidden_layers; ++i) {
    if (with.model.layer_type(i) == LayerType::gdn)
      expected += recurrence::gdn_prepared_bytes(Dtype::bf16, tokens, rows, linear.num_value_heads,
                                                 linear.key_head_dim, linear.value_head_dim, call);
    if (with.model.layer_type(i) == LayerType::gdn2)
      expected += recurrence::gdn2_prepared_bytes(Dtype::bf16, tokens, rows, linear.num_key_heads,
                                                  linear.key_head_dim, linear.value_head_dim, call);
  }
  EXPECT_GT(expected, 0);
  EXPECT_EQ(saved(with) - saved(without), expected);
  constexpr std::int64_t plenty = std::int64_t{1} << 40;
  EXPECT_EQ(largest_micro_batch(with, 1, plenty), largest_micro_batch(without, 1, plenty));
}

TEST(RunPlan, SaysWhenThePinnedLimitIsTooLowAndWhatFits) {
  const std::vector<std::string> on = {"--offload.enabled=true", "--offload.min_tensor_elements=1",
                                       "--offload.slots=1", "--model.num_hidden_layers=8"};
  RunConfig config = config_of(on);
  const std::int64_t needed = make_plan(config, 1).pinned_bytes;
  EXPECT_GE(needed, make_plan(config, 1).offloaded_bytes);
  const auto text = [&] { return plan_text(make_plan(config, 1), config, 0.0); };
  config.offload.pinned_limit = needed;
  EXPECT_FALSE(has(text(), "pinned_limit"));
  config.offload.pinned_limit = needed - 1;
  // Of five equal groups four fit.
  EXPECT_TRUE(has(text(), concat("more than offload.pinned_limit allows: ", needed, " bytes, the limit is ",
                                 needed - 1, "; offload.fraction: 0.8 would fit")));
  config.offload.fraction = 0.8;
  EXPECT_FALSE(has(text(), "pinned_limit"));
  config.offload.pinned_limit = 100;
  EXPECT_TRUE(has(text(), "not even one group fits"));
}

TEST(RunPlan, SaysWhyNothingMoves) {
  RunConfig config = config_of({"--offload.enabled=true", "--offload.min_tensor_elements=1",
                                "--offload.slots=1", "--model.num_hidden_layers=8"});
  const auto text = [&] { return plan_text(make_plan(config, 1), config, 0.0); };
  EXPECT_FALSE(has(text(), "moves nothing"));
  config.offload.fraction = 1e-10;
  EXPECT_TRUE(has(text(), "offload moves nothing: offload.fraction = 1e-10 of the 5 groups"));
  config.offload.fraction = 1.0;
  config.offload.keep_last = 6;
  EXPECT_TRUE(has(text(), "offload moves nothing: all 6 groups of a forward stay, because the last 6"));
  config.offload.min_tensor_elements = 1 << 30;
  EXPECT_TRUE(has(text(), "offload moves nothing: no tensor in its scopes"));
}

TEST(LargestMicroBatch, MayGrowWithOffload) {
  RunConfig config =
      config_of({"--offload.min_tensor_elements=1", "--offload.slots=1", "--model.num_hidden_layers=16",
                 "--offload.scopes=[gdn_core_attn, norm_out, mlp]"});
  const std::int64_t bytes = bytes_with(config, 1, 4);
  EXPECT_EQ(largest_micro_batch(config, 1, bytes), 4);
  config.offload.enabled = true;
  const std::int64_t more = largest_micro_batch(config, 1, bytes);
  EXPECT_GT(more, 4);
  EXPECT_LE(bytes_with(config, 1, more), bytes);
}

TEST(RunPlan, TotalsAreSums) {
  const RunConfig config = config_of({"--train.steps=1000"});
  const RunPlan plan = make_plan(config, 2);
  EXPECT_EQ(plan.micro_batches, 12);
  EXPECT_EQ(plan.total_tokens, 1536000);
  std::int64_t parameters = 0;
  for (const SizeEntry& entry : plan.parameters) parameters += entry.amount;
  EXPECT_EQ(plan.parameter_count, parameters);
  EXPECT_THROW(make_plan(config, 5), ConfigError);
}

}  // namespace
}  // namespace deltaport
