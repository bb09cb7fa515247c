// SPDX-License-Identifier: Apache-2.0
// Training with saved tensors in host memory gives the bits of training without.
#include <gtest/gtest.h>

#include "deltaport/train/run_offload.hpp"
#include "deltaport/train/training_run.hpp"
#include "train/small_run.hpp"

namespace deltaport {
namespace {

using testing::Folder;

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<float> gradients, weights, moments;
  bool operator==(const Outcome&) const = default;
};

struct Trained {
  Outcome outcome;
  OffloadMetrics metrics;  // of all steps
  std::int64_t launches = 0;
};

Trained train(const RunConfig& config, std::int64_t steps) {
  Runtime runtime({.arena = {.slab_bytes = std::size_t{2} << 20}});  // less to touch
  TrainingRun<float> training(Communicator(), runtime, config);
  Trained run;
  for (std::int64_t s = 0; s < steps; ++s) {
    const StepResult result = training.step(s);
    run.outcome.losses.push_back(result.loss);
    run.outcome.norms.push_back(result.grad_norm);
  }
  const auto& parameters = training.model().parameters();
  run.outcome.gradients = to_vector(runtime.compute(), parameters.flat_gradients());
  run.outcome.weights = to_vector(runtime.compute(), parameters.flat_values());
  run.outcome.moments = to_vector(runtime.compute(), training.optimizer().exp_avg_sq());
  if (RunOffload* offload = training.offload()) run.metrics = offload->take_metrics(steps, 1.0);
  if (graph::GraphSegments* graphs = training.graphs()) run.launches = graphs->stats().launches;
  return run;
}

enum class Documents { packed, whole };
enum class MicroBatches { one, three };

class OffloadMatrix : public ::testing::TestWithParam<std::tuple<Documents, MicroBatches, bool>> {
 protected:
  static void SetUpTestSuite() {
    folder_ = new Folder(concat("offload-matrix-", ::getpid()));
    testing::write_small_run(*folder_);
    // One document fills every sample.
    TokenWriter writer(*folder_ / "whole", TokenDtype::u16, Existing::replace);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 4000; ++i) ids.push_back(97 + i * i % 26);
    writer.append(ids);
    writer.end_document();
    writer.publish(nullptr);
  }
  static void TearDownTestSuite() { delete folder_; }

  static RunConfig config(std::vector<std::string> more) {
    const auto [documents, micro_batches, recompute] = GetParam();
    std::vector<std::string> overrides = {
        "--model.num_hidden_layers=6", "--train.global_batch_tokens=96",
        concat("--recompute.gdn_norm_out=", recompute ? "true" : "false"),
        micro_batches == MicroBatches::one ? "--train.micro_batch=3" : "--train.micro_batch=1"};
    if (documents == Documents::whole)
      overrides.push_back(concat("--data.train=[{path: '", *folder_ / "whole", "'}]"));
    overrides.insert(overrides.end(), more.begin(), more.end());
    return testing::small_config(*folder_, overrides).config;
  }
  static Folder* folder_;
};
Folder* OffloadMatrix::folder_ = nullptr;

TEST_P(OffloadMatrix, EveryArmGivesTheSameBits) {
  constexpr std::int64_t steps = 3;
  const Trained plain = train(config({}), steps);
  ASSERT_TRUE(std::isfinite(plain.outcome.losses.back()));
  for (const char* scopes :
       {"gdn_core_attn", "norm_out", "attn_core", "mlp", "gdn_core_attn, norm_out, attn_core, mlp"})
    for (const char* fraction : {"0.0", "0.5", "1.0"})
      for (const char* threshold : {"1", "1000000000"}) {
        SCOPED_TRACE(concat(scopes, " ", fraction, " ", threshold));
        const Trained moved =
            train(config({"--offload.enabled=true", concat("--offload.scopes=[", scopes, "]"),
                          "--offload.slots=1", concat("--offload.fraction=", fraction),
                          concat("--offload.min_tensor_elements=", threshold)}),
                  steps);
        EXPECT_EQ(moved.outcome.losses, plain.outcome.losses);
        EXPECT_EQ(moved.outcome.norms, plain.outcome.norms);
        EXPECT_TRUE(moved.outcome == plain.outcome);
        const bool moves = std::string(fraction) != "0.0" && std::string(threshold) == "1";
        EXPECT_EQ(moved.metrics.to_host_bytes > 0, moves);
        EXPECT_EQ(moved.metrics.to_device_bytes > 0, moves);
        EXPECT_EQ(moved.metrics.useless_bytes, 0);
      }
}

// A norm's output that was saved is the one that backward would compute.
TEST_P(OffloadMatrix, RecomputingGivesTheSavedBits) {
  const bool recompute = std::get<2>(GetParam());
  const Trained one = train(config({}), 3);
  const Trained other = train(config({concat("--recompute.gdn_norm_out=", recompute ? "false" : "true")}), 3);
  EXPECT_TRUE(one.outcome == other.outcome);
  // Rows that do not end with a whole vector.
  for (const char* width : {"8", "24", "40"}) {
    const std::string value_dim = concat("--model.linear.value_head_dim=", width);
    const Trained kept = train(config({value_dim, "--recompute.gdn_norm_out=false"}), 2);
    const Trained again = train(config({value_dim, "--recompute.gdn_norm_out=true"}), 2);
    EXPECT_TRUE(kept.outcome == again.outcome) << width;
  }
  for (const char* again : {"none", "all"})
    for (const char* scope : {"none", "step"}) {
      const Trained inputs =
          train(config({concat("--recompute.gdn_core_inputs=", again), concat("--graph.scope=", scope)}), 3);
      EXPECT_TRUE(one.outcome == inputs.outcome) << again << " " << scope;
    }
  for (const char* prepared : {"true", "false"}) {
    const Trained moved =
        train(config({"--recompute.gdn_core_inputs=none", "--offload.enabled=true", "--offload.slots=1",
                      "--offload.min_tensor_elements=1", concat("--recompute.gdn_preparation=", prepared)}),
              3);
    EXPECT_TRUE(one.outcome == moved.outcome) << prepared;
  }
}

// More slots, delayed copies and a bound on copies under way change nothing either.
TEST_P(OffloadMatrix, OtherWaysToMoveGiveTheSameBits) {
  const Trained plain = train(config({}), 2);
  for (const std::vector<std::string>& way :
       {std::vector<std::string>{"--offload.slots=2"},
        {"--offload.slots=3", "--offload.max_inflight=1"},
        {"--offload.slots=1", "--offload.delayed=true"},
        {"--offload.slots=3", "--offload.keep_last=1"},
        {"--offload.slots=3", "--offload.keep_last=1", "--offload.delayed=true"},
        {"--offload.slots=1", "--offload.keep_last=4"}}) {
    std::vector<std::string> overrides = {"--offload.enabled=true",
                                          "--offload.scopes=[gdn_core_attn, norm_out, attn_core, mlp]",
                                          "--offload.min_tensor_elements=1"};
    overrides.insert(overrides.end(), way.begin(), way.end());
    const Trained moved = train(config(overrides), 2);
    EXPECT_TRUE(moved.outcome == plain.outcome) << way.back();
    EXPECT_GT(moved.metrics.to_device_bytes, 0) << way.back();
  }
}

// The same in captured graphs: what moves is what moves without them.
TEST_P(OffloadMatrix, CapturedGraphsGiveTheSameBits) {
  constexpr std::int64_t steps = 4;
  const Trained plain = train(config({}), steps);
  for (const char* fraction : {"0.5", "1.0"}) {
    const std::vector<std::string> moving = {
        "--offload.enabled=true", "--offload.slots=1", "--offload.min_tensor_elements=1",
        concat("--offload.fraction=", fraction), "--offload.scopes=[gdn_core_attn, norm_out, attn_core]"};
    const Trained eager = train(config(moving), steps);
    for (const char* scope : {"attention", "layer", "step"}) {
      SCOPED_TRACE(concat(scope, " ", fraction));
      std::vector<std::string> overrides = moving;
      overrides.push_back(concat("--graph.scope=", scope));
      const Trained graph = train(config(overrides), steps);
      EXPECT_TRUE(graph.outcome == plain.outcome);
      EXPECT_GT(graph.launches, 0);
      EXPECT_EQ(graph.metrics.to_host_bytes, eager.metrics.to_host_bytes);
      EXPECT_EQ(graph.metrics.to_device_bytes, eager.metrics.to_device_bytes);
      EXPECT_EQ(graph.metrics.groups, eager.metrics.groups);
      EXPECT_EQ(graph.metrics.useless_bytes, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OffloadMatrix,
                         ::testing::Combine(::testing::Values(Documents::packed, Documents::whole),
                                            ::testing::Values(MicroBatches::one, MicroBatches::three),
                                            ::testing::Bool()),
                         [](const auto& p) {
                           return concat(std::get<0>(p.param) == Documents::packed ? "packed" : "whole",
                                         std::get<1>(p.param) == MicroBatches::one ? "_one" : "_three",
                                         std::get<2>(p.param) ? "_recomputed" : "_saved");
                         });

using OffloadOfARun = OffloadMatrix;

TEST_P(OffloadOfARun, EvaluationTeachesNothingAndDisturbsNothing) {
  const std::vector<std::string> on = {"--offload.enabled=true", "--offload.slots=1",
                                       "--offload.min_tensor_elements=1"};
  const Trained straight = train(config(on), 3);
  Runtime runtime;
  TrainingRun<float> run(Communicator(), runtime, config(on));
  run.evaluate();
  EXPECT_TRUE(run.offload()->offloader().schedule().plan().empty());
  for (std::int64_t s = 0; s < 3; ++s) {
    EXPECT_EQ(run.step(s).loss, straight.outcome.losses[static_cast<std::size_t>(s)]);
    EXPECT_EQ(run.offload()->offloader().schedule().plan().size(), 4U);
    run.evaluate();
  }
  // Two kinds of layers, two of each: all but the last group move.
  std::int64_t moving = 0;
  for (const auto& group : run.offload()->offloader().schedule().plan()) moving += group.moves ? 1 : 0;
  EXPECT_EQ(moving, 3);
  EXPECT_EQ(to_vector(runtime.compute(), run.model().parameters().flat_values()), straight.outcome.weights);
}

TEST_P(OffloadOfARun, SaysWhenNothingMovesAndWhenItWaits) {
  Runtime runtime;
  TrainingRun<float> run(Communicator(), runtime, config({"--offload.enabled=true"}));
  run.step(0);
  OffloadMetrics metrics = run.offload()->take_metrics(1, 0.1);
  auto warnings = run.offload()->take_warnings(metrics);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("offload.min_tensor_elements = 1048576"), std::string::npos);
  EXPECT_TRUE(run.offload()->take_warnings(metrics).empty());

  Runtime other;
  TrainingRun<float> moving(
      Communicator(), other,
      config({"--offload.enabled=true", "--offload.slots=1", "--offload.min_tensor_elements=1"}));
  moving.step(0);
  metrics = moving.offload()->take_metrics(2, 0.1);
  EXPECT_NE(metrics.peak_blocks.find("parameters"), std::string::npos) << metrics.peak_blocks;
  metrics.to_host_seconds = metrics.to_device_seconds = 0.05;
  metrics.stall_seconds = 0.001;
  EXPECT_TRUE(moving.offload()->take_warnings(metrics).empty());
  metrics.stall_seconds = 0.025;
  // Neither one noisy step nor two tell anything, and no wait is longer than its copies.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(moving.offload()->take_warnings(metrics).empty());
  OffloadMetrics noisy = metrics;
  noisy.to_host_seconds = noisy.to_device_seconds = 0.0001;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(moving.offload()->take_warnings(noisy).empty());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(moving.offload()->take_warnings(metrics).empty());
  warnings = moving.offload()->take_warnings(metrics);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("offload.fraction: 0.75 would fit"), std::string::npos) << warnings[0];
  EXPECT_DOUBLE_EQ(metrics.overlap(), 0.75);
}

TEST_P(OffloadOfARun, NoFractionIsAdvisedWhereNoneFits) {
  Runtime runtime;
  TrainingRun<float> run(
      Communicator(), runtime,
      config({"--offload.enabled=true", "--offload.slots=1", "--offload.min_tensor_elements=1"}));
  run.step(0);
  OffloadMetrics metrics = run.offload()->take_metrics(2, 0.1);
  metrics.to_host_seconds = metrics.to_device_seconds = 0.05;
  metrics.stall_seconds = 0.0999;
  std::vector<std::string> warnings;
  for (int i = 0; i < 3; ++i) warnings = run.offload()->take_warnings(metrics);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("no offload.fraction hides them"), std::string::npos) << warnings[0];
}

TEST_P(OffloadOfARun, ASmallFractionIsNamedAsTheReason) {
  Runtime runtime;
  TrainingRun<float> run(Communicator(), runtime,
                         config({"--offload.enabled=true", "--offload.slots=1", "--offload.fraction=1e-10",
                                 "--offload.min_tensor_elements=1"}));
  run.step(0);
  const OffloadMetrics metrics = run.offload()->take_metrics(1, 0.1);
  const auto warnings = run.offload()->take_warnings(metrics);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("offload moves nothing: offload.fraction = 1e-10 of the "), std::string::npos)
      << warnings[0];
  // Nothing was copied that could have hidden.
  run.step(1);
  const std::string summary = run.offload()->summary(run.offload()->take_metrics(2, 0.1));
  EXPECT_EQ(summary.find("overlap"), std::string::npos) << summary;
}

TEST_P(OffloadOfARun, ALimitBeyondTheMachineNamesItsKey) {
  Runtime runtime;
  try {
    TrainingRun<float> run(Communicator(), runtime,
                           config({"--offload.enabled=true", "--offload.pinned_limit=1152921504606846976"}));
    FAIL() << "this machine has no 2^60 bytes";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("offload.pinned_limit = 1152921504606846976: "), std::string::npos)
        << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Packed, OffloadOfARun,
                         ::testing::Values(std::tuple(Documents::packed, MicroBatches::three, true)));

}  // namespace
}  // namespace deltaport
