// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/rms_norm.hpp"

#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

template <class T>
struct Fixture {
  explicit Fixture(std::int64_t size) : norm(parameters, "model.norm", size, 1e-6) {
    parameters.allocate(runtime);
    randomise(runtime, parameters, 3, 0.3);
  }
  Runtime runtime;
  ParameterSet<T> parameters;
  RmsNorm<T> norm;
};

/// The formula, in double.
std::vector<double> formula(const std::vector<double>& x, const std::vector<double>& w, double eps) {
  std::vector<double> y(x.size());
  const std::size_t size = w.size();
  for (std::size_t row = 0; row < x.size() / size; ++row) {
    double squares = 0.0;
    for (std::size_t i = 0; i < size; ++i) squares += x[row * size + i] * x[row * size + i];
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(size) + eps);
    for (std::size_t i = 0; i < size; ++i) y[row * size + i] = x[row * size + i] * rstd * (1.0 + w[i]);
  }
  return y;
}

TEST(RmsNorm, forward_follows_the_formula) {
  for (std::int64_t size : {1, 7, 16, 33, 256}) {
    Fixture<double> f(size);
    const Tensor<double> x = random_tensor<double>(f.runtime, {5, size}, 1);
    SavedTensors saved;
    Context context{f.runtime, saved, Mode::evaluate};
    const auto want = formula(host(f.runtime, x), host(f.runtime, f.norm.weight().value()), 1e-6);
    EXPECT_LE(relative_error(host(f.runtime, f.norm.forward(context, x)), want), 1e-14) << size;
    EXPECT_TRUE(saved.empty());
  }
}

TEST(RmsNorm, new_weights_are_zero_and_leave_the_scale_alone) {
  Runtime runtime;
  ParameterSet<double> parameters;
  RmsNorm<double> norm(parameters, "n", 3, 1e-6);
  parameters.allocate(runtime);
  parameters.initialize(runtime, 1);
  SavedTensors saved;
  Context context{runtime, saved, Mode::evaluate};
  const auto x = from_vector<double>(runtime.compute(), runtime.arena(), "x", {1, 3}, {2, 2, 2});
  for (double y : host(runtime, norm.forward(context, x))) EXPECT_NEAR(y, 1.0, 1e-6);
  EXPECT_FALSE(parameters.infos()[0].decay);
  EXPECT_EQ(parameters.infos()[0].name, "n.weight");
}

TEST(RmsNorm, gradients_match_central_differences) {
  for (std::int64_t rows : {1, 5, 37}) {
    Fixture<double> f(19);
    GradientCase layer;
    layer.inputs = {{"x", random_tensor<double>(f.runtime, {rows, 19}, 1)}};
    layer.parameters = &f.parameters;
    layer.forward = [&](Context& c) { return f.norm.forward(c, layer.inputs[0].value); };
    layer.backward = [&](Context& c, const Tensor<double>& dy) {
      return std::vector<Tensor<double>>{f.norm.backward(c, dy)};
    };
    check_gradients(f.runtime, layer);
  }
}

TEST(RmsNorm, residual_form_equals_addition_and_norm) {
  Fixture<float> f(48);
  const Tensor<float> x = random_tensor<float>(f.runtime, {21, 48}, 1);
  const Tensor<float> delta = random_tensor<float>(f.runtime, {21, 48}, 2);
  const Tensor<float> dy = random_tensor<float>(f.runtime, {21, 48}, 4);
  const Tensor<float> d_sum = random_tensor<float>(f.runtime, {21, 48}, 5);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const auto fused = f.norm.forward_residual(context, x, delta);
  const auto d_fused = host(f.runtime, f.norm.backward(context, dy, d_sum));
  add_in_place(f.runtime, x, delta);
  const auto y = f.norm.forward(context, x);
  const Tensor<float> dx = f.norm.backward(context, dy);
  add_in_place(f.runtime, dx, d_sum);
  EXPECT_TRUE(same_bits(host(f.runtime, fused.sum), host(f.runtime, x)));
  EXPECT_TRUE(same_bits(host(f.runtime, fused.normalised), host(f.runtime, y)));
  EXPECT_LE(relative_error(d_fused, host(f.runtime, dx)), 1e-6);
  EXPECT_TRUE(saved.empty());
}

TEST(RmsNorm, float32_is_close_to_float64_and_gradients_accumulate) {
  Fixture<float> f(100);
  Fixture<double> d(100);
  SavedTensors saved;
  Context fc{f.runtime, saved, Mode::train};
  Context dc{d.runtime, saved, Mode::train};
  std::vector<float> first;
  for (int call = 0; call < 2; ++call) {
    const auto y = f.norm.forward(fc, random_tensor<float>(f.runtime, {50, 100}, 1));
    const auto dx = f.norm.backward(fc, random_tensor<float>(f.runtime, {50, 100}, 2));
    const auto yd = d.norm.forward(dc, random_tensor<double>(d.runtime, {50, 100}, 1));
    const auto dxd = d.norm.backward(dc, random_tensor<double>(d.runtime, {50, 100}, 2));
    EXPECT_LE(relative_error(host(f.runtime, y), host(d.runtime, yd)), 1e-6);
    EXPECT_LE(relative_error(host(f.runtime, dx), host(d.runtime, dxd)), 1e-6);
    if (call == 0) first = host(f.runtime, f.norm.weight().gradient());
  }
  const auto twice = host(f.runtime, f.norm.weight().gradient());
  for (float& g : first) g *= 2.0f;
  EXPECT_TRUE(same_bits(twice, first));
  EXPECT_LE(relative_error(twice, host(d.runtime, d.norm.weight().gradient())), 1e-5);
}

TEST(RmsNorm, rejects_wrong_shapes) {
  Fixture<float> f(8);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  EXPECT_THROW(f.norm.forward(context, random_tensor<float>(f.runtime, {2, 7}, 1)), ShapeError);
  EXPECT_THROW(f.norm.forward(context, random_tensor<float>(f.runtime, {16}, 1)), ShapeError);
  f.norm.forward(context, random_tensor<float>(f.runtime, {2, 8}, 1));
  EXPECT_THROW(f.norm.backward(context, random_tensor<float>(f.runtime, {3, 8}, 1)), ShapeError);
}

}  // namespace
}  // namespace deltaport
