// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/mlp.hpp"

#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

ModelConfig small(std::int64_t hidden, std::int64_t inner) {
  ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = inner;
  return config;
}

template <class T>
struct Fixture {
  Fixture(std::int64_t hidden, std::int64_t inner) : mlp(parameters, "mlp", small(hidden, inner)) {
    parameters.allocate(runtime);
    randomise(runtime, parameters, 5, 0.4);
  }
  Runtime runtime;
  ParameterSet<T> parameters;
  Mlp<T> mlp;
};

TEST(Mlp, names_follow_hugging_face_and_gate_and_up_are_one_block) {
  Fixture<float> f(6, 10);
  const auto& infos = f.parameters.infos();
  ASSERT_EQ(infos.size(), 3u);
  EXPECT_EQ(infos[0].name, "mlp.gate_proj.weight");
  EXPECT_EQ(infos[1].name, "mlp.up_proj.weight");
  EXPECT_EQ(infos[1].offset, infos[0].offset + 60);
  EXPECT_EQ(infos[2].name, "mlp.down_proj.weight");
  EXPECT_EQ(infos[2].shape, (Shape{6, 10}));
}

TEST(Mlp, forward_follows_the_formula) {
  const std::int64_t d = 3, n = 5, tokens = 4;
  Fixture<double> f(d, n);
  const auto x = random_tensor<double>(f.runtime, {tokens, d}, 1);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::evaluate};
  const auto y = host(f.runtime, f.mlp.forward(context, x));
  const auto xs = host(f.runtime, x), gate = host(f.runtime, f.parameters.value(0)),
             up = host(f.runtime, f.parameters.value(1)), down = host(f.runtime, f.parameters.value(2));
  std::vector<double> want(static_cast<std::size_t>(tokens * d), 0.0);
  for (std::size_t t = 0; t < 4; ++t)
    for (std::size_t i = 0; i < 5; ++i) {
      double g = 0.0, u = 0.0;
      for (std::size_t c = 0; c < 3; ++c) {
        g += gate[i * 3 + c] * xs[t * 3 + c];
        u += up[i * 3 + c] * xs[t * 3 + c];
      }
      for (std::size_t c = 0; c < 3; ++c) want[t * 3 + c] += down[c * 5 + i] * u * g / (1.0 + std::exp(-g));
    }
  EXPECT_LE(relative_error(y, want), 1e-13);
  EXPECT_TRUE(saved.empty());
}

TEST(Mlp, gradients_match_central_differences) {
  for (std::int64_t tokens : {1, 7}) {
    Fixture<double> f(9, 21);
    GradientCase layer;
    layer.inputs = {{"x", random_tensor<double>(f.runtime, {tokens, 9}, 1)}};
    layer.parameters = &f.parameters;
    layer.forward = [&](Context& c) { return f.mlp.forward(c, layer.inputs[0].value); };
    layer.backward = [&](Context& c, const Tensor<double>& dy) {
      return std::vector<Tensor<double>>{f.mlp.backward(c, dy)};
    };
    check_gradients(f.runtime, layer);
  }
}

TEST(Mlp, float32_is_close_to_float64_and_gradients_accumulate) {
  Fixture<float> f(33, 70);
  Fixture<double> d(33, 70);
  SavedTensors saved;
  Context fc{f.runtime, saved, Mode::train};
  Context dc{d.runtime, saved, Mode::train};
  std::vector<float> first;
  for (int call = 0; call < 2; ++call) {
    const auto y = f.mlp.forward(fc, random_tensor<float>(f.runtime, {50, 33}, 1));
    const auto dx = f.mlp.backward(fc, random_tensor<float>(f.runtime, {50, 33}, 2));
    const auto yd = d.mlp.forward(dc, random_tensor<double>(d.runtime, {50, 33}, 1));
    const auto dxd = d.mlp.backward(dc, random_tensor<double>(d.runtime, {50, 33}, 2));
    EXPECT_LE(relative_error(host(f.runtime, y), host(d.runtime, yd)), 3e-6);
    EXPECT_LE(relative_error(host(f.runtime, dx), host(d.runtime, dxd)), 3e-6);
    if (call == 0) first = host(f.runtime, f.parameters.flat_gradients());
  }
  const auto twice = host(f.runtime, f.parameters.flat_gradients());
  for (float& g : first) g *= 2.0f;
  EXPECT_LE(relative_error(twice, first), 1e-6);
  EXPECT_LE(relative_error(twice, host(d.runtime, d.parameters.flat_gradients())), 3e-6);
}

TEST(Mlp, keeps_its_input_without_copying_it) {
  Fixture<float> f(8, 16);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const auto x = random_tensor<float>(f.runtime, {10, 8}, 1);
  f.mlp.forward(context, x);
  EXPECT_EQ(saved.bytes(), x.storage()->bytes() + 10 * 32 * sizeof(float));
  EXPECT_THROW(f.mlp.forward(context, random_tensor<float>(f.runtime, {10, 9}, 1)), ShapeError);
  EXPECT_THROW(f.mlp.backward(context, random_tensor<float>(f.runtime, {9, 8}, 1)), ShapeError);
}

}  // namespace
}  // namespace deltaport
