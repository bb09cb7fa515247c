// SPDX-License-Identifier: Apache-2.0
// Every input of a pass is an input and no constant: a replay with another value gives what an eager pass with that
// value gives, and something else than before.
#include "graph/model_arms.hpp"

namespace deltaport {
namespace {

using testing::Documents;
using testing::SmallLm;

/// Inputs of a pass on the host, so that each can be changed alone.
struct Inputs {
  std::vector<std::int32_t> tokens, labels, cu_seqlens, positions, sequence_of;
  double scale = 0.125;

  Inputs(const std::vector<std::int32_t>& boundaries, std::int64_t vocab) : cu_seqlens(boundaries) {
    const Documents d(boundaries, vocab, 3);
    tokens = d.tokens;
    labels = d.labels;
    for (std::size_t n = 0; n + 1 < boundaries.size(); ++n)
      for (std::int32_t t = boundaries[n]; t < boundaries[n + 1]; ++t) {
        positions.push_back(t - boundaries[n]);
        sequence_of.push_back(static_cast<std::int32_t>(n));
      }
  }
};

class GraphModelInputs : public ::testing::TestWithParam<graph::Scope> {
 protected:
  struct Result {
    double loss;
    std::vector<float> gradients;
    bool operator==(const Result&) const = default;
  };

  void build(const std::vector<LayerType>& pattern) {
    config = testing::small_lm_config(testing::Head::tied);
    config.layer_pattern = pattern;
    lm = std::make_unique<SmallLm<float>>(runtime, config);
    loss = runtime.allocate_zero<double>("loss", Shape{1});
    graphs = std::make_unique<graph::GraphSegments>(runtime, graph::Options{.scope = GetParam()});
  }
  Tensor<std::int32_t> device(const std::vector<std::int32_t>& values) {
    return from_vector(runtime.compute(), runtime.arena(), "ids",
                       Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  Result pass(const Inputs& in, graph::GraphSegments* segments) {
    set_zero(runtime.compute(), loss);
    lm->model.parameters().zero_gradients(runtime);
    SavedTensors saved;
    Context context{runtime, saved, Mode::train, segments};
    const Sequences sequences{device(in.cu_seqlens), device(in.positions), device(in.sequence_of)};
    lm->model.forward_backward(context, device(in.tokens), device(in.labels), sequences, in.scale, loss);
    return {to_vector(runtime.compute(), loss)[0],
            to_vector(runtime.compute(), lm->model.parameters().flat_gradients())};
  }
  /// Captures with `base`, replays with `changed` and with `base` again.
  void expect_input(const Inputs& base, const Inputs& changed) {
    const Result before = pass(base, nullptr), after = pass(changed, nullptr);
    EXPECT_FALSE(before == after) << "the change has no effect";
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(pass(base, graphs.get()) == before);
      graphs->step_done();
    }
    ASSERT_GT(graphs->stats().segments, 0);
    EXPECT_TRUE(pass(changed, graphs.get()) == after);
    EXPECT_TRUE(pass(base, graphs.get()) == before);
    EXPECT_EQ(graphs->stats().chains, 1);
  }

  Runtime runtime{{.arena = {.poison = true}}};
  ModelConfig config;
  std::unique_ptr<SmallLm<float>> lm;
  Tensor<double> loss;
  std::unique_ptr<graph::GraphSegments> graphs;
};

const std::vector<LayerType> mixed = {LayerType::gdn, LayerType::gdn2, LayerType::attention};

TEST_P(GraphModelInputs, TokenIds) {
  build(mixed);
  const Inputs base({0, 40, 100}, config.vocab_size);
  Inputs changed = base;
  changed.tokens[17] = (changed.tokens[17] + 1) % 13;
  expect_input(base, changed);
}

TEST_P(GraphModelInputs, Labels) {
  build(mixed);
  const Inputs base({0, 40, 100}, config.vocab_size);
  Inputs changed = base;
  changed.labels[17] = -100;
  expect_input(base, changed);
}

TEST_P(GraphModelInputs, GradientScale) {
  build(mixed);
  const Inputs base({0, 40, 100}, config.vocab_size);
  Inputs changed = base;
  changed.scale = 0.7;
  expect_input(base, changed);
}

TEST_P(GraphModelInputs, PositionsAlone) {
  build({LayerType::gdn, LayerType::gdn2});
  const Inputs base({0, 40, 100}, config.vocab_size);
  Inputs changed = base;
  changed.positions[50] = 0;  // the convolution begins anew there
  expect_input(base, changed);
}

TEST_P(GraphModelInputs, SequenceLengthsAlone) {
  build({LayerType::gdn, LayerType::gdn2});
  const Inputs base({0, 40, 100}, config.vocab_size);
  Inputs changed = base;
  changed.cu_seqlens[1] = 83;  // longer than the longest of the capture
  expect_input(base, changed);
}

TEST_P(GraphModelInputs, BoundariesOfDocumentsForAttention) {
  build({LayerType::attention});
  const Inputs base({0, 40, 100}, config.vocab_size);
  Inputs changed({0, 83, 100}, config.vocab_size);
  changed.tokens = base.tokens;
  changed.labels = base.labels;
  expect_input(base, changed);
}

INSTANTIATE_TEST_SUITE_P(Scopes, GraphModelInputs, ::testing::ValuesIn(testing::all_scopes));

// What cannot be an input is refused instead of frozen.
TEST(GraphModelConstants, ValuesOfTheHostAreRefused) {
  Runtime runtime;
  const ModelConfig config = testing::small_lm_config(testing::Head::tied);
  SmallLm<float> lm(runtime, config);
  const testing::DeviceDocuments d(runtime, Documents({0, 40}, config.vocab_size, 1));
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  SavedTensors saved;
  Context context{runtime, saved};
  const auto refusal = [&](const std::function<void()>& body) -> std::string {
    try {
      graph::CapturedGraph::capture(runtime, "test", body);
    } catch (const CaptureError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal([&] {
              lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, 0.5, loss);
            }).find("'deltaport: fill' cannot be captured"),
            std::string::npos);
  AdamW<float> adamw(runtime, lm.model.parameters(), {}, 1.0);
  const auto norm = runtime.allocate_zero<double>("norm", Shape{1});
  EXPECT_NE(
      refusal([&] { adamw.step(runtime, 0.1, norm); }).find("'deltaport: adamw rate' cannot be captured"),
      std::string::npos);
  EXPECT_NE(refusal([&] {
              make_sequences(runtime, {0, 4}, 4);
            }).find("'deltaport: host to device copy'"),
            std::string::npos);
}

}  // namespace
}  // namespace deltaport
