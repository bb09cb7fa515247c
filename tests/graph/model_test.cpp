// SPDX-License-Identifier: Apache-2.0
// The model with captured graphs against the model without: the same bits, for every scope and kind of layer.
#include "graph/model_arms.hpp"

namespace deltaport {
namespace {

using recurrence::Implementation;
using testing::all_scopes;
using testing::Arm;
using testing::expect_same_bits;
using testing::Trace;

std::vector<Implementation> implementations(const std::vector<LayerType>& pattern) {
  if (pattern == std::vector{LayerType::attention}) return {Implementation::portable};
  if constexpr (!runs_on_host) return {Implementation::reference, Implementation::portable};
  return {Implementation::reference, Implementation::portable, Implementation::host};
}

// Segments of one captured pass: a forward and a backward of each mixer or layer, and the loss with the layers.
std::int64_t segments(graph::Scope scope, std::int64_t layers) {
  return scope == graph::Scope::attention ? 2 * layers : scope == graph::Scope::layer ? 2 * layers + 1 : 1;
}

class GraphModel : public ::testing::TestWithParam<std::vector<LayerType>> {};

TEST_P(GraphModel, EveryScopeGivesTheSameBits) {
  Arm arm;
  arm.model.layer_pattern = GetParam();
  arm.model.num_hidden_layers = static_cast<std::int64_t>(GetParam().size()) + 1;
  for (const Implementation implementation : implementations(GetParam()))
    for (const bool packed : {true, false})
      for (const int micro_batches : {1, 3}) {
        arm.recurrence = implementation;
        arm.model.linear.chunk_size = implementation == Implementation::host ? 64 : 16;
        arm.packed = packed;
        arm.micro_batches = micro_batches;
        arm.graphs.scope = graph::Scope::none;
        const Trace eager = run(arm);
        for (const graph::Scope scope : all_scopes) {
          SCOPED_TRACE(concat("implementation ", static_cast<int>(implementation), packed ? " packed " : " ",
                              micro_batches, " micro-batches, scope ", static_cast<int>(scope)));
          arm.graphs.scope = scope;
          const Trace graph = run(arm);
          ASSERT_NO_FATAL_FAILURE(expect_same_bits(eager, graph));
          EXPECT_EQ(graph.stats.segments, segments(scope, arm.model.num_hidden_layers));
          // All but the one warm-up step.
          EXPECT_EQ(graph.stats.launches, graph.stats.segments * micro_batches * (arm.steps - 1));
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Layers, GraphModel,
                         ::testing::Values(std::vector{LayerType::gdn}, std::vector{LayerType::gdn2},
                                           std::vector{LayerType::attention},
                                           std::vector{LayerType::gdn, LayerType::gdn2,
                                                       LayerType::attention}));

TEST(GraphModelRuns, EvaluationBeforeAndBetweenStepsChangesNothing) {
  Arm arm;
  arm.micro_batches = 2;
  const Trace plain = run(arm);
  for (const graph::Scope scope :
       {graph::Scope::none, graph::Scope::attention, graph::Scope::layer, graph::Scope::step}) {
    arm.graphs.scope = scope;
    arm.evaluate = true;
    Trace evaluated = run(arm);
    EXPECT_EQ(evaluated.evaluations.size(), static_cast<std::size_t>(arm.steps) + 1);
    evaluated.evaluations.clear();
    ASSERT_NO_FATAL_FAILURE(expect_same_bits(plain, evaluated));
  }
}

TEST(GraphModelRuns, LongerWarmUpAndUntiedHead) {
  Arm arm;
  arm.model = testing::small_lm_config(testing::Head::untied, 2);
  const Trace eager = run(arm);
  for (const graph::Scope scope : all_scopes) {
    arm.graphs.scope = scope;
    arm.graphs.warmup_steps = 3;
    ASSERT_NO_FATAL_FAILURE(expect_same_bits(eager, run(arm)));
  }
}

// Any operation of the model may refuse to be captured: the pass then goes on eagerly from where it is.
TEST(GraphModelRuns, AFailedCaptureAtAnyPlaceFallsBackToTheSameBits) {
  Arm arm;
  arm.steps = 3;
  const Trace eager = run(arm);
  for (const graph::Scope scope : all_scopes) {
    arm.graphs.scope = scope;
    testing::fail_captures_of(arm, 17,
                              [&](const Trace&, const Trace& failed) { expect_same_bits(eager, failed); });
  }
}

TEST(GraphModelRuns, HoldsForManySteps) {
  Arm arm;
  arm.steps = 300;
  arm.poison = false;
  const Trace eager = run(arm);
  arm.graphs.scope = graph::Scope::step;
  ASSERT_NO_FATAL_FAILURE(expect_same_bits(eager, run(arm)));
}

TEST(GraphModelRuns, ShapesThatChangeAfterTheWarmUpAreCapturedToo) {
  for (const graph::Scope scope : all_scopes) {
    Runtime runtime;
    const ModelConfig config = testing::small_lm_config(testing::Head::tied);
    testing::SmallLm<float> lm(runtime, config);
    const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
    graph::GraphSegments graphs(runtime, {.scope = scope});
    const auto gradients = [&](graph::GraphSegments* segments, int step) {
      const std::int32_t tokens = step % 3 == 0 ? 90 : 57;
      std::vector<std::int32_t> boundaries = {0, 30 + step, tokens};
      if (step % 3 == 2) boundaries.push_back(tokens);  // one more document, an empty one
      const testing::DeviceDocuments d(runtime, testing::Documents(boundaries, config.vocab_size, 5));
      lm.model.parameters().zero_gradients(runtime);
      SavedTensors saved;
      Context context{runtime, saved, Mode::train, segments};
      lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, 0.1, loss);
      return to_vector(runtime.compute(), lm.model.parameters().flat_gradients());
    };
    for (int step = 0; step < 12; ++step) {
      const auto expected = gradients(nullptr, step);
      ASSERT_EQ(gradients(&graphs, step), expected) << step;
      graphs.step_done();
    }
    EXPECT_EQ(graphs.stats().chains, 3);
  }
}

}  // namespace
}  // namespace deltaport
