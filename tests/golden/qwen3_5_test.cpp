// SPDX-License-Identifier: Apache-2.0
// The model as transformers computes it: qwen3_5.py says how the numbers were made.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/model/hybrid_lm.hpp"
#include "deltaport/model/sampling.hpp"

namespace deltaport::test {
namespace {

const std::filesystem::path folder = DELTAPORT_GOLDEN_DIR "/qwen3_5";

/// Largest difference over the largest expected value.
template <class A>
double relative_error(const std::vector<A>& computed, const std::vector<double>& expected) {
  EXPECT_EQ(computed.size(), expected.size());
  double largest = 0.0, difference = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    difference = std::max(difference, std::abs(static_cast<double>(computed[i]) - expected[i]));
  }
  return difference / largest;
}

template <class T>
struct Golden {
  Runtime runtime;
  HybridLm<T> model;
  SafetensorsReader expected{folder / "expected.safetensors"};
  std::vector<std::int32_t> tokens = expected.read<std::int32_t>("tokens");
  std::int64_t count = static_cast<std::int64_t>(tokens.size());

  explicit Golden(recurrence::Implementation implementation)
      : model(read_hugging_face_model(folder), {.loss_chunk_tokens = 32, .recurrence = implementation}) {
    model.parameters().allocate(runtime);
    load_initial_weights(runtime, folder, Verify::sizes, model.config(), model.parameters());
  }
  Tensor<std::int32_t> upload(const std::vector<std::int32_t>& values) {
    return from_vector(runtime.compute(), runtime.arena(), "tokens",
                       Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  Sequences sequences() { return make_sequences(runtime, {0, static_cast<std::int32_t>(count)}, count); }

  double logits_error() {
    SavedTensors nothing;
    Context context{runtime, nothing, Mode::evaluate};
    const auto logits = model.logits(context, upload(tokens), sequences());
    return relative_error(to_vector(runtime.compute(), logits), expected.read<double>("logits"));
  }
  /// Checks the loss; returns the largest error of all gradients.
  double gradients_error() {
    std::vector<std::int32_t> labels(tokens.begin() + 1, tokens.end());
    labels.push_back(-100);
    SavedTensors saved;
    Context context{runtime, saved};
    const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
    const double scale = 1.0 / static_cast<double>(count - 1);
    model.forward_backward(context, upload(tokens), upload(labels), sequences(), scale, loss);
    EXPECT_NEAR(to_vector(runtime.compute(), loss)[0] * scale, expected.read<double>("loss")[0], 2e-6);
    double largest = 0.0;
    for (std::size_t i = 0; i < model.parameters().infos().size(); ++i) {
      const std::string& name = model.parameters().infos()[i].name;
      const auto gradient = to_vector(runtime.compute(), model.parameters().gradient(static_cast<int>(i)));
      const double error = relative_error(gradient, expected.read<double>("gradient." + name));
      EXPECT_LT(error, 1e-4) << name;
      largest = std::max(largest, error);
    }
    return largest;
  }
};

class Qwen35 : public ::testing::TestWithParam<recurrence::Implementation> {};

template <class T>
void expect_their_numbers(recurrence::Implementation implementation) {
  Golden<T> golden(implementation);
  const double logits = golden.logits_error(), gradients = golden.gradients_error();
  std::printf("%zu bytes: logits %.2e, gradients %.2e\n", sizeof(T), logits, gradients);
  EXPECT_LT(logits, 1e-5);
  EXPECT_LT(gradients, 1e-4);
}

TEST_P(Qwen35, LogitsAndGradientsAreThoseOfTransformers) {
  expect_their_numbers<float>(GetParam());
}

TEST_P(Qwen35, DoubleIsWithinTheirRounding) {
  expect_their_numbers<double>(GetParam());
}

// Those that compute in float64 too; `automatic` takes `host` in float32 where there is one.
INSTANTIATE_TEST_SUITE_P(Implementations, Qwen35,
                         ::testing::Values(recurrence::Implementation::automatic,
                                           recurrence::Implementation::reference,
                                           recurrence::Implementation::portable));

TEST(Qwen35Decoding, GreedyTokensAreThoseOfTransformers) {
  Golden<float> golden(recurrence::Implementation::automatic);
  const SafetensorsReader reader(folder / "greedy.safetensors");
  const auto prompt = reader.read<std::int32_t>("prompt"), greedy = reader.read<std::int32_t>("greedy");
  auto state = golden.model.make_decode_state(golden.runtime, 1,
                                              static_cast<std::int64_t>(prompt.size() + greedy.size()));
  std::vector<float> logits;
  const auto feed = [&](std::int32_t token) {
    logits =
        to_vector(golden.runtime.compute(), golden.model.step(golden.runtime, golden.upload({token}), state));
  };
  for (const std::int32_t token : prompt) feed(token);
  for (const std::int32_t expected : greedy) {
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), expected);
    feed(expected);
  }
}

// The prompt in chunks, alone and beside others.
TEST(Qwen35Decoding, GreedyTokensAfterPromptsInChunksAreThoseOfTransformers) {
  Golden<float> golden(recurrence::Implementation::automatic);
  const SafetensorsReader reader(folder / "greedy.safetensors");
  const auto prompt = reader.read<std::int32_t>("prompt"), greedy = reader.read<std::int32_t>("greedy");
  const std::vector<std::int32_t> longer(prompt.size() + 70, prompt[0]);
  for (const std::int64_t chunk : {1, 3, 1000}) {
    auto state = golden.model.make_decode_state(golden.runtime, 3,
                                                static_cast<std::int64_t>(longer.size() + greedy.size()));
    auto logits =
        to_vector(golden.runtime.compute(),
                  golden.model.prefill(golden.runtime, {longer, prompt, {prompt[0]}}, chunk, state));
    for (const std::int32_t expected : greedy) {
      const auto vocabulary = static_cast<std::ptrdiff_t>(logits.size() / 3);
      const auto mine = logits.begin() + vocabulary;  // of the second text
      EXPECT_EQ(std::max_element(mine, mine + vocabulary) - mine, expected) << chunk;
      logits =
          to_vector(golden.runtime.compute(),
                    golden.model.step(golden.runtime, golden.upload({prompt[0], expected, expected}), state));
    }
  }
}

TEST(Qwen35Files, ComeBackAsTransformersWroteThem) {
  const TempFolder temp;
  import_hugging_face(folder, temp / "native", Overwrite::refuse);
  export_hugging_face({.checkpoint = temp / "native", .output = temp / "text"});
  export_hugging_face(
      {.checkpoint = temp / "native", .output = temp / "merged", .mode = ExportMode::merge, .base = folder});
  for (const char* name : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_file(temp / "text" / name), read_file(folder / name)) << name;
    EXPECT_EQ(read_file(temp / "merged" / name), read_file(folder / name)) << name;
  }
}

}  // namespace
}  // namespace deltaport::test
