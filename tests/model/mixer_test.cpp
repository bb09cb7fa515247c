// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "deltaport/model/gdn2_mixer.hpp"
#include "deltaport/model/gdn_mixer.hpp"
#include "model/gradient_check.hpp"

namespace deltaport {
namespace {

using recurrence::Implementation;
using testing::host;
using testing::random_tensor;

ModelConfig small_config(std::int64_t value_heads) {
  ModelConfig config;
  config.hidden_size = 10;
  config.linear = {2, value_heads, 4, 6, 4, 16};
  return config;
}

template <class T>
std::unique_ptr<LinearMixer<T>> make_mixer(LayerType type, ParameterSet<T>& parameters,
                                           const ModelConfig& config,
                                           Implementation implementation = Implementation::automatic) {
  if (type == LayerType::gdn)
    return std::make_unique<GdnMixer<T>>(parameters, "mixer", config, implementation);
  return std::make_unique<Gdn2Mixer<T>>(parameters, "mixer", config, implementation);
}

// A mixer with parameters of a size at which every gate is well inside its range.
template <class T>
struct Mixer {
  ModelConfig config;
  ParameterSet<T> parameters;
  std::unique_ptr<LinearMixer<T>> layer;
  Mixer(Runtime& runtime, LayerType type, std::int64_t value_heads,
        Implementation implementation = Implementation::automatic)
      : config(small_config(value_heads)), layer(make_mixer<T>(type, parameters, config, implementation)) {
    parameters.allocate(runtime);
    testing::randomise(runtime, parameters, 1, 0.4);
  }
};

struct MixerCase {
  LayerType type;
  std::int64_t value_heads;
};
class LinearMixerTest : public ::testing::TestWithParam<MixerCase> {};

TEST_P(LinearMixerTest, GradientsMatchCentralDifferences) {
  Runtime runtime;
  Mixer<double> mixer(runtime, GetParam().type, GetParam().value_heads);
  for (const auto& cu : {std::vector<std::int32_t>{0, 1}, {0, 2}, {0, 3, 4, 24}}) {
    const std::int64_t tokens = cu.back();
    const Sequences seqs = make_sequences(runtime, cu, tokens);
    const auto x = random_tensor<double>(runtime, Shape{tokens, mixer.config.hidden_size}, 2);
    testing::GradientCase layer;
    layer.inputs = {{"x", x}};
    layer.parameters = &mixer.parameters;
    layer.forward = [&](Context& c) { return mixer.layer->forward(c, x, seqs); };
    layer.backward = [&](Context& c, const Tensor<double>& dy) -> std::vector<Tensor<double>> {
      return {mixer.layer->backward(c, dy, seqs)};
    };
    testing::check_gradients(runtime, layer, {.max_entries = 12});
  }
}

template <class T>
struct MixerRun {
  std::vector<T> y, dx, gradients;
};

template <class T>
MixerRun<T> run_mixer(Runtime& runtime, Mixer<T>& mixer, const std::vector<std::int32_t>& cu,
                      const Tensor<T>& x, const Tensor<T>& dy) {
  SavedTensors saved;
  Context context{runtime, saved};
  const Sequences seqs = make_sequences(runtime, cu, cu.back());
  mixer.parameters.zero_gradients(runtime);
  MixerRun<T> result;
  result.y = host(runtime, mixer.layer->forward(context, x, seqs));
  EXPECT_GT(saved.bytes("gdn_core_attn"), 0u);
  EXPECT_LT(saved.bytes("gdn_core_attn"), saved.bytes());
  result.dx = host(runtime, mixer.layer->backward(context, dy, seqs));
  EXPECT_TRUE(saved.empty());
  result.gradients = host(runtime, mixer.parameters.flat_gradients());
  return result;
}

TEST_P(LinearMixerTest, DocumentsDoNotSeeEachOther) {
  Runtime runtime;
  Mixer<float> mixer(runtime, GetParam().type, GetParam().value_heads);
  for (const std::int32_t boundary : {1, 15, 16, 17, 63, 64, 65}) {
    const std::int64_t tokens = boundary + 20, hidden = mixer.config.hidden_size;
    const std::vector<std::int32_t> cu{0, boundary, static_cast<std::int32_t>(tokens)};
    const auto x = random_tensor<float>(runtime, Shape{tokens, hidden}, 3);
    const auto dy = random_tensor<float>(runtime, Shape{tokens, hidden}, 4);
    const MixerRun<float> before = run_mixer(runtime, mixer, cu, x, dy);
    // New values in one document leave the other's rows untouched, in both directions.
    for (const bool first : {true, false}) {
      auto values = host(runtime, x), gradients = host(runtime, dy);
      const std::int64_t begin = first ? 0 : boundary * hidden,
                         end = first ? boundary * hidden : tokens * hidden;
      for (std::int64_t i = begin; i < end; ++i) {
        values[static_cast<std::size_t>(i)] += 1.0f;
        gradients[static_cast<std::size_t>(i)] -= 2.0f;
      }
      const auto changed_x = from_vector(runtime.compute(), runtime.arena(), "x", x.shape(), values);
      const auto changed_dy = from_vector(runtime.compute(), runtime.arena(), "dy", x.shape(), gradients);
      const MixerRun<float> after = run_mixer(runtime, mixer, cu, changed_x, changed_dy);
      const auto kept = [&](const std::vector<float>& all) {
        return first ? std::vector<float>(all.begin() + end, all.end())
                     : std::vector<float>(all.begin(), all.begin() + begin);
      };
      EXPECT_TRUE(testing::same_bits(kept(before.y), kept(after.y))) << boundary;
      EXPECT_TRUE(testing::same_bits(kept(before.dx), kept(after.dx))) << boundary;
      EXPECT_FALSE(testing::same_bits(before.dx, after.dx));
    }
  }
}

TEST_P(LinearMixerTest, RepeatsToTheLastBit) {
  Runtime runtime;
  Mixer<float> mixer(runtime, GetParam().type, GetParam().value_heads);
  const auto x = random_tensor<float>(runtime, Shape{90, mixer.config.hidden_size}, 5);
  const auto dy = random_tensor<float>(runtime, Shape{90, mixer.config.hidden_size}, 6);
  const MixerRun<float> first = run_mixer(runtime, mixer, {0, 40, 90}, x, dy);
  const MixerRun<float> second = run_mixer(runtime, mixer, {0, 40, 90}, x, dy);
  EXPECT_TRUE(testing::same_bits(first.y, second.y));
  EXPECT_TRUE(testing::same_bits(first.dx, second.dx));
  EXPECT_TRUE(testing::same_bits(first.gradients, second.gradients));
}

TEST_P(LinearMixerTest, ChunkedAgreesWithTokenByToken) {
  Runtime runtime;
  Mixer<double> chunked(runtime, GetParam().type, GetParam().value_heads, Implementation::portable);
  Mixer<double> sequential(runtime, GetParam().type, GetParam().value_heads, Implementation::reference);
  const auto x = random_tensor<double>(runtime, Shape{75, chunked.config.hidden_size}, 7);
  const auto dy = random_tensor<double>(runtime, Shape{75, chunked.config.hidden_size}, 8);
  const MixerRun<double> a = run_mixer(runtime, chunked, {0, 1, 18, 75}, x, dy);
  const MixerRun<double> b = run_mixer(runtime, sequential, {0, 1, 18, 75}, x, dy);
  EXPECT_LE(testing::relative_error(a.y, b.y), 1e-12);
  EXPECT_LE(testing::relative_error(a.dx, b.dx), 1e-12);
  EXPECT_LE(testing::relative_error(a.gradients, b.gradients), 1e-12);
}

TEST_P(LinearMixerTest, StepsEqualTheWholeSequence) {
  Runtime runtime;
  Mixer<double> mixer(runtime, GetParam().type, GetParam().value_heads);
  const std::int64_t tokens = 21, hidden = mixer.config.hidden_size;
  // Two sequences side by side, decoded together.
  const auto x = random_tensor<double>(runtime, Shape{2 * tokens, hidden}, 9);
  SavedTensors saved;
  Context context{runtime, saved, Mode::evaluate};
  const Sequences seqs = make_sequences(runtime, {0, 21, 42}, 2 * tokens);
  const auto whole = host(runtime, mixer.layer->forward(context, x, seqs));
  EXPECT_TRUE(saved.empty());
  const auto state = mixer.layer->make_state(runtime, 2);
  const auto values = host(runtime, x);
  const auto row = [&](const std::vector<double>& all, std::int64_t t) {
    return std::vector<double>(all.begin() + t * hidden, all.begin() + (t + 1) * hidden);
  };
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto pair = row(values, t), want = row(whole, t);
    const auto second = row(values, tokens + t), second_want = row(whole, tokens + t);
    pair.insert(pair.end(), second.begin(), second.end());
    want.insert(want.end(), second_want.begin(), second_want.end());
    const auto in = from_vector(runtime.compute(), runtime.arena(), "x", Shape{2, hidden}, pair);
    EXPECT_LE(testing::relative_error(host(runtime, mixer.layer->step(runtime, in, state)), want), 1e-11)
        << t;
  }
}

TEST_P(LinearMixerTest, RejectsWrongShapes) {
  Runtime runtime;
  Mixer<float> mixer(runtime, GetParam().type, GetParam().value_heads);
  SavedTensors saved;
  Context context{runtime, saved};
  const Sequences seqs = make_sequences(runtime, {0, 4}, 4);
  const auto narrow = random_tensor<float>(runtime, Shape{4, mixer.config.hidden_size - 1}, 1);
  const auto short_x = random_tensor<float>(runtime, Shape{3, mixer.config.hidden_size}, 1);
  EXPECT_THROW(mixer.layer->forward(context, narrow, seqs), ShapeError);
  EXPECT_THROW(mixer.layer->forward(context, short_x, seqs), ShapeError);
  EXPECT_THROW(mixer.layer->make_state(runtime, 0), ShapeError);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinearMixerTest,
                         ::testing::Values(MixerCase{LayerType::gdn, 2}, MixerCase{LayerType::gdn, 4},
                                           MixerCase{LayerType::gdn2, 2}, MixerCase{LayerType::gdn2, 4}),
                         [](const auto& instance) {
                           return std::string(instance.param.type == LayerType::gdn ? "gdn" : "gdn2") +
                                  (instance.param.value_heads == 2 ? "" : "_grouped");
                         });

TEST(LinearMixer, DeclaresItsParameters) {
  ParameterSet<float> gdn, gdn2;
  const ModelConfig config = small_config(4);  // H 2, HV 4, K 4, V 6, D 10: H K 8, HV V 24
  GdnMixer<float> a(gdn, "m", config);
  Gdn2Mixer<float> b(gdn2, "m", config);
  const auto text = [](const ParameterSet<float>& set) {
    std::string all;
    for (const ParameterInfo& info : set.infos())
      all += info.name + info.shape.str() + (info.decay ? " decay\n" : "\n");
    return all;
  };
  EXPECT_EQ(text(gdn),
            "m.in_proj_qkv.weight[40, 10] decay\nm.in_proj_z.weight[24, 10] decay\nm.in_proj_b.weight[4, 10] "
            "decay\n"
            "m.in_proj_a.weight[4, 10] decay\nm.conv1d.weight[40, 1, 4]\nm.norm.weight[6]\n"
            "m.out_proj.weight[10, 24] decay\nm.A_log[4]\nm.dt_bias[4]\n");
  EXPECT_EQ(text(gdn2),
            "m.in_proj_qkv.weight[40, 10] decay\nm.in_proj_z.weight[24, 10] decay\nm.in_proj_f.weight[8, 10] "
            "decay\n"
            "m.in_proj_b.weight[8, 10] decay\nm.in_proj_w.weight[24, 10] decay\nm.conv1d.weight[40, 1, 4]\n"
            "m.norm.weight[6]\nm.out_proj.weight[10, 24] decay\nm.A_log[2]\nm.dt_bias[8]\n");
}

}  // namespace
}  // namespace deltaport
