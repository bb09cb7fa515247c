// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/training_run.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "train/small_run.hpp"

namespace deltaport {
namespace {

using testing::Folder;

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<float> weights;
  std::vector<float> moments;
};

/// Masters and second moments; the weights of a bfloat16 run are its rounded masters, which is checked here.
template <class T = float>
Outcome train(const Communicator& communicator, const RunConfig& config, std::int64_t steps) {
  Runtime runtime;
  TrainingRun<T> run(communicator, runtime, config);
  Outcome outcome;
  for (std::int64_t s = 0; s < steps; ++s) {
    const StepResult result = run.step(s);
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
  }
  outcome.weights = to_vector(runtime.compute(), run.optimizer().masters());
  const auto values = to_vector(runtime.compute(), run.model().parameters().flat_values());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(widen(values[i]), widen(static_cast<T>(outcome.weights[i])));
  outcome.moments = to_vector(runtime.compute(), run.optimizer().exp_avg_sq());
  return outcome;
}

/// The data set is written once, by rank 0, and shared by all ranks and tests of this process.
class TrainingRunTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Communicator world = Communicator::world();
    folder_ = new Folder(world.broadcast(concat("training-run-", ::getpid())));
    if (world.is_root()) testing::write_small_run(*folder_);
    world.barrier();
  }
  static void TearDownTestSuite() {
    Communicator::world().barrier();
    if (Communicator::world().is_root()) delete folder_;
  }
  static RunConfig config(std::vector<std::string> overrides = {}) {
    return testing::small_config(*folder_, std::move(overrides)).config;
  }
  static Folder* folder_;
};
Folder* TrainingRunTest::folder_ = nullptr;

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.moments, b.moments);
}

TEST_F(TrainingRunTest, LearnsAndRepeatsToTheLastBit) {
  const Communicator world = Communicator::world();
  const Outcome first = train(world, config(), 20);
  EXPECT_NEAR(first.losses[0], std::log(257.0), 0.2);
  EXPECT_LT(first.losses.back(), first.losses[0] - 2.0);
  const Outcome second = train(world, config(), 20);
  expect_same_bits(first, second);
}

TEST_F(TrainingRunTest, AnyNumberOfRanksTrainsTheSame) {
  const Communicator world = Communicator::world();
  const Outcome together = train(world, config(), 20);
  const Outcome alone = train(Communicator(), config(), 20);
  for (std::size_t s = 0; s < 20; ++s) {
    EXPECT_NEAR(together.losses[s], alone.losses[s], 1e-5 * std::abs(alone.losses[s])) << "step " << s;
    EXPECT_NEAR(together.norms[s], alone.norms[s], 1e-4 * alone.norms[s]) << "step " << s;
  }
}

TEST_F(TrainingRunTest, RanksHoldTheSameBits) {
  const Communicator world = Communicator::world();
  const Outcome mine = train(world, config(), 3);
  std::string bytes(reinterpret_cast<const char*>(mine.weights.data()), mine.weights.size() * sizeof(float));
  EXPECT_EQ(world.broadcast(bytes), bytes);
}

// 50 steps from the same weights over the same samples, from a loss of 5.5 to one of 0.6. Gradients are off
// by a percent, and rounded weights cost a little of what the masters have reached.
TEST_F(TrainingRunTest, Bfloat16LearnsAsFloat32Does) {
  const RunConfig long_run = config({"--train.steps=50"});
  const Outcome single = train(Communicator(), long_run, 50);
  const Outcome half = train<bfloat16>(Communicator(), long_run, 50);
  EXPECT_NE(half.losses, single.losses);
  EXPECT_NEAR(half.losses[0], single.losses[0], 1e-3);
  EXPECT_LT(single.losses[49], 0.8);
  double sum = 0.0;
  for (std::size_t s = 0; s < 50; ++s) {
    EXPECT_NEAR(half.losses[s], single.losses[s], 0.03) << "step " << s;
    sum += std::abs(half.losses[s] - single.losses[s]);
  }
  EXPECT_LT(sum / 50, 0.01);
}

TEST_F(TrainingRunTest, Bfloat16RepeatsToTheLastBit) {
  const Communicator world = Communicator::world();
  const Outcome first = train<bfloat16>(world, config(), 8), second = train<bfloat16>(world, config(), 8);
  expect_same_bits(first, second);
  std::string bytes(reinterpret_cast<const char*>(first.weights.data()),
                    first.weights.size() * sizeof(float));
  EXPECT_EQ(world.broadcast(bytes), bytes);  // and all ranks hold them
}

// Sums over ranks are float32. They differ in their order, so a weight near the middle of two bfloat16
// numbers may be rounded the other way.
TEST_F(TrainingRunTest, AnyNumberOfRanksTrainsTheSameInBfloat16) {
  const Communicator world = Communicator::world();
  const Outcome together = train<bfloat16>(world, config(), 10),
                alone = train<bfloat16>(Communicator(), config(), 10);
  EXPECT_NEAR(together.losses[0], alone.losses[0], 1e-6 * alone.losses[0]);
  EXPECT_NEAR(together.norms[0], alone.norms[0], 1e-4 * alone.norms[0]);
  for (std::size_t s = 0; s < 10; ++s)
    EXPECT_NEAR(together.losses[s], alone.losses[s], 1e-3 * alone.losses[s]) << "step " << s;
}

TEST_F(TrainingRunTest, ThePrecisionComesFromTheConfiguration) {
  const Communicator world = Communicator::world();
  Runtime runtime;
  const auto half = make_training_run(world, runtime, config({"--train.precision=bfloat16"}));
  EXPECT_NE(dynamic_cast<TrainingRun<bfloat16>*>(half.get()), nullptr);
  const auto single = make_training_run(world, runtime, config());
  EXPECT_NE(dynamic_cast<TrainingRun<float>*>(single.get()), nullptr);
  EXPECT_EQ(half->parameter_count(), single->parameter_count());
  EXPECT_EQ(half->step(0).valid_tokens, single->step(0).valid_tokens);
  EXPECT_NEAR(half->evaluate().loss, single->evaluate().loss, 0.02);
}

TEST_F(TrainingRunTest, MicroBatchesChangeOnlyTheOrderOfSums) {
  const Communicator world = Communicator::world();
  const Outcome one = train(world, config(), 5);
  const Outcome two = train(world, config({"--train.micro_batch=2"}), 5);
  for (std::size_t s = 0; s < 5; ++s)
    EXPECT_NEAR(one.losses[s], two.losses[s], 1e-5 * one.losses[s]) << "step " << s;
}

TEST_F(TrainingRunTest, StepsCanBeRepeatedAfterSeek) {
  Runtime runtime;
  TrainingRun<float> run(Communicator::world(), runtime,
                         config({"--optimizer.lr=1.0e-30", "--optimizer.weight_decay=0.0"}));
  const double first = run.step(0).loss;
  run.step(1);
  EXPECT_EQ(run.step(0).loss, first);
}

TEST_F(TrainingRunTest, EvaluationChangesNothingAndAgreesOverRanks) {
  const Communicator world = Communicator::world();
  Runtime runtime;
  TrainingRun<float> run(world, runtime, config());
  const EvalResult before = run.evaluate();
  EXPECT_EQ(run.evaluate().loss, before.loss);
  const double step_after_evaluation = run.step(0).loss;
  Runtime other;
  TrainingRun<float> fresh(world, other, config());
  EXPECT_EQ(fresh.step(0).loss, step_after_evaluation);
  Runtime third;
  TrainingRun<float> alone(Communicator(), third, config());
  const EvalResult single = alone.evaluate();
  EXPECT_EQ(single.valid_tokens, before.valid_tokens);
  EXPECT_NEAR(single.loss, before.loss, 1e-12);
}

TEST_F(TrainingRunTest, RefusesRanksThatDoNotDivideTheBatch) {
  const Communicator world = Communicator::world();
  if (world.size() == 1) return;  // one rank divides every batch
  // 11 samples: no share for 2 or 3 ranks.
  const RunConfig odd = config({"--train.global_batch_tokens=352"});
  Runtime runtime;
  EXPECT_THROW(TrainingRun<float>(world, runtime, odd), ConfigError);
}

// Micro-batches hold different numbers of documents; the learning rate changes with every step.
TEST_F(TrainingRunTest, CapturedGraphsTrainToTheSameBits) {
  const Communicator world = Communicator::world();
  for (const char* micro_batch : {"1", "2"}) {
    const std::string micro = concat("--train.micro_batch=", micro_batch);
    const Outcome eager = train(world, config({micro}), 6);
    for (const char* scope : {"attention", "layer", "step"}) {
      SCOPED_TRACE(concat(scope, ", micro-batch ", micro_batch));
      const Outcome graph = train(world, config({micro, concat("--graph.scope=", scope)}), 6);
      expect_same_bits(eager, graph);
    }
  }
}

TEST_F(TrainingRunTest, CapturesEveryPassAndLeavesEvaluationAlone) {
  const Communicator world = Communicator::world();
  Runtime runtime;
  TrainingRun<float> run(world, runtime, config({"--graph.scope=step", "--graph.warmup_steps=2"}));
  const double before = run.evaluate().loss;
  EXPECT_GT(before, 0.0);
  for (std::int64_t step = 0; step < 2; ++step) run.step(step);
  EXPECT_EQ(run.graphs()->stats().chains, 0);
  for (std::int64_t step = 2; step < 12; ++step) run.step(step);
  const graph::Stats stats = run.graphs()->stats();
  EXPECT_GE(stats.chains, 2);  // micro-batches of one or more shapes, and the update
  EXPECT_LE(stats.chains, 5);
  EXPECT_EQ(stats.segments, stats.chains);
  EXPECT_GT(stats.bytes, 0u);
  const double after = run.evaluate().loss;
  EXPECT_LT(after, before);
  EXPECT_EQ(run.evaluate().loss, after);
  EXPECT_EQ(run.graphs()->stats().launches, stats.launches);
}

TEST_F(TrainingRunTest, EagerRunsHaveNoGraphs) {
  Runtime runtime;
  TrainingRun<float> run(Communicator(), runtime, config());
  EXPECT_EQ(run.graphs(), nullptr);
}

}  // namespace
}  // namespace deltaport
