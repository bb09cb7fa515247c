// SPDX-License-Identifier: Apache-2.0
// The model as transformers computes it: qwen3_5.py says how the numbers were made.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <regex>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/model/hybrid_lm.hpp"
#include "deltaport/model/sampling.hpp"
#include "golden/qwen3_5_folder.hpp"

namespace deltaport::test {
namespace {

/// A parameter's name without its layer's number.
std::string kind_of(const std::string& name) {
  static const std::regex layer("model\\.layers\\.[0-9]+\\.");
  return std::regex_replace(name, layer, "");
}

template <class T>
struct Golden {
  Runtime runtime;
  HybridLm<T> model;
  SafetensorsReader expected{golden_folder() / "expected.safetensors"};
  std::vector<std::int32_t> tokens = expected.read<std::int32_t>("tokens");
  std::int64_t count = static_cast<std::int64_t>(tokens.size());
  std::int64_t length = expected.at("tokens").shape.at(1);  // of each of the texts, which are packed

  explicit Golden(recurrence::Implementation implementation)
      : model(read_hugging_face_model(golden_folder()),
              {.loss_chunk_tokens = 32, .recurrence = implementation}) {
    model.parameters().allocate(runtime);
    load_initial_weights(runtime, golden_folder(), Verify::sizes, model.config(), model.parameters());
  }
  Tensor<std::int32_t> upload(const std::vector<std::int32_t>& values) {
    return from_vector(runtime.compute(), runtime.arena(), "tokens",
                       Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  Sequences sequences() {
    std::vector<std::int32_t> begins;
    for (std::int64_t at = 0; at <= count; at += length) begins.push_back(static_cast<std::int32_t>(at));
    return make_sequences(runtime, begins, count);
  }

  Deviation logits_deviation() {
    SavedTensors nothing;
    Context context{runtime, nothing, Mode::evaluate};
    const auto logits = model.logits(context, upload(tokens), sequences());
    return deviation(to_vector(runtime.compute(), logits), expected.read<float>("logits"));
  }
  /// Checks the loss, and every tensor against the limit; returns the largest deviations of each kind.
  std::map<std::string, Deviation> gradient_deviations(double limit) {
    std::vector<std::int32_t> labels(tokens.begin() + 1, tokens.end());
    labels.push_back(-100);
    std::int64_t valid = count;
    for (std::int64_t end = length; end <= count; end += length, --valid)
      labels[static_cast<std::size_t>(end - 1)] = -100;
    SavedTensors saved;
    Context context{runtime, saved};
    const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
    const double scale = 1.0 / static_cast<double>(valid);
    model.forward_backward(context, upload(tokens), upload(labels), sequences(), scale, loss);
    EXPECT_NEAR(to_vector(runtime.compute(), loss)[0] * scale, expected.read<double>("loss")[0], 2e-6);
    std::map<std::string, Deviation> kinds;
    for (std::size_t i = 0; i < model.parameters().infos().size(); ++i) {
      const std::string& name = model.parameters().infos()[i].name;
      const auto gradient = to_vector(runtime.compute(), model.parameters().gradient(static_cast<int>(i)));
      const Deviation found = deviation(gradient, expected.read<float>("gradient." + name));
      EXPECT_LT(found.worst(), limit) << name;
      Deviation& most = kinds[kind_of(name)];
      most = {std::max(most.rms, found.rms), std::max(most.largest, found.largest)};
    }
    return kinds;
  }
};

class Qwen35 : public ::testing::TestWithParam<recurrence::Implementation> {};

void print(const std::string& what, const Deviation& found) {
  std::printf("  %-42s %.1e  %.1e\n", what.c_str(), found.rms, found.largest);
}

template <class T>
void expect_their_numbers(recurrence::Implementation implementation, double logits_limit,
                          double gradients_limit) {
  Golden<T> golden(implementation);
  std::printf("deviations in %zu bytes: rms over rms, largest over largest\n", sizeof(T));
  const Deviation logits = golden.logits_deviation();
  print("logits", logits);
  EXPECT_LT(logits.worst(), logits_limit);
  for (const auto& [kind, found] : golden.gradient_deviations(gradients_limit))
    print("gradient of " + kind, found);
}

TEST_P(Qwen35, LogitsAndGradientsAreThoseOfTransformers) {
  expect_their_numbers<float>(GetParam(), 1e-5, 1e-4);
}

// What is left is the file's rounding to float32, and theirs of the rotary frequencies.
TEST_P(Qwen35, DoubleDiffersByRoundingsOnly) {
  expect_their_numbers<double>(GetParam(), 1e-6, 2e-6);
}

// Those that compute in float64 too; `automatic` takes `host` in float32 where there is one.
INSTANTIATE_TEST_SUITE_P(Implementations, Qwen35,
                         ::testing::Values(recurrence::Implementation::automatic,
                                           recurrence::Implementation::reference,
                                           recurrence::Implementation::portable));

// All prompts in step, as one batch.
TEST(Qwen35Decoding, GreedyTokensAreThoseOfTransformers) {
  Golden<float> golden(recurrence::Implementation::automatic);
  const SafetensorsReader reader(golden_folder() / "greedy.safetensors");
  const auto prompts = reader.read<std::int32_t>("prompt"), greedy = reader.read<std::int32_t>("greedy");
  const std::int64_t texts = reader.at("prompt").shape.at(0), given = reader.at("prompt").shape.at(1),
                     added = reader.at("greedy").shape.at(1);
  const auto column = [&](const std::vector<std::int32_t>& rows, std::int64_t width, std::int64_t at) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < texts; ++i) tokens.push_back(rows[static_cast<std::size_t>(i * width + at)]);
    return tokens;
  };
  auto state = golden.model.make_decode_state(golden.runtime, texts, given + added);
  std::vector<float> logits;
  const auto feed = [&](const std::vector<std::int32_t>& tokens) {
    logits =
        to_vector(golden.runtime.compute(), golden.model.step(golden.runtime, golden.upload(tokens), state));
  };
  for (std::int64_t at = 0; at < given; ++at) feed(column(prompts, given, at));
  for (std::int64_t at = 0; at < added; ++at) {
    const auto expected = column(greedy, added, at);
    const auto width = static_cast<std::ptrdiff_t>(logits.size()) / texts;
    for (std::int64_t i = 0; i < texts; ++i) {
      const auto row = logits.begin() + i * width;
      EXPECT_EQ(std::max_element(row, row + width) - row, expected[static_cast<std::size_t>(i)])
          << "text " << i << ", token " << at;
    }
    feed(expected);
  }
}

// The prompts in chunks, beside a longer one and one of a single token.
TEST(Qwen35Decoding, GreedyTokensAfterPromptsInChunksAreThoseOfTransformers) {
  Golden<float> golden(recurrence::Implementation::automatic);
  const SafetensorsReader reader(golden_folder() / "greedy.safetensors");
  const auto prompts = reader.read<std::int32_t>("prompt"), greedy = reader.read<std::int32_t>("greedy");
  const std::int64_t texts = reader.at("prompt").shape.at(0), given = reader.at("prompt").shape.at(1),
                     added = reader.at("greedy").shape.at(1), longer = given + 70;
  std::vector<std::vector<std::int32_t>> given_tokens = {
      std::vector<std::int32_t>(static_cast<std::size_t>(longer), prompts[0])};
  for (std::int64_t i = 0; i < texts; ++i)
    given_tokens.emplace_back(prompts.begin() + i * given, prompts.begin() + (i + 1) * given);
  given_tokens.push_back({prompts[0]});
  for (const std::int64_t chunk : {1, 3, 1000}) {
    auto state = golden.model.make_decode_state(golden.runtime, texts + 2, longer + added);
    auto logits =
        to_vector(golden.runtime.compute(), golden.model.prefill(golden.runtime, given_tokens, chunk, state));
    for (std::int64_t at = 0; at < added; ++at) {
      const auto vocabulary = static_cast<std::ptrdiff_t>(logits.size()) / (texts + 2);
      std::vector<std::int32_t> next = {prompts[0]};
      for (std::int64_t i = 0; i < texts; ++i) {
        next.push_back(greedy[static_cast<std::size_t>(i * added + at)]);
        const auto row = logits.begin() + (i + 1) * vocabulary;
        EXPECT_EQ(std::max_element(row, row + vocabulary) - row, next.back())
            << "chunks of " << chunk << ", text " << i << ", token " << at;
      }
      next.push_back(prompts[0]);
      logits =
          to_vector(golden.runtime.compute(), golden.model.step(golden.runtime, golden.upload(next), state));
    }
  }
}

TEST(Qwen35Files, ComeBackAsTransformersWroteThem) {
  const std::filesystem::path folder = golden_folder();
  const TempFolder temp;
  import_hugging_face(folder, temp / "native", Overwrite::refuse);
  export_hugging_face({.checkpoint = temp / "native", .output = temp / "text"});
  export_hugging_face(
      {.checkpoint = temp / "native", .output = temp / "merged", .mode = ExportMode::merge, .base = folder});
  for (const char* name : {"model.safetensors", "config.json"}) {
    // Not EXPECT_EQ, which would print them.
    EXPECT_TRUE(read_file(temp / "text" / name) == read_file(folder / name)) << name;
    EXPECT_TRUE(read_file(temp / "merged" / name) == read_file(folder / name)) << name;
  }
}

}  // namespace
}  // namespace deltaport::test
