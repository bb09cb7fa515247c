// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/gates.hpp"

#include <cmath>

#include "model/concatenate.hpp"
#include "model/gradient_check.hpp"

namespace deltaport {
namespace {

using testing::host;
using testing::random_tensor;

double softplus_of(double x) {
  return std::log1p(std::exp(x));
}
double sigmoid_of(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

constexpr QkvShape grouped{2, 4, 3, 5};

// a_log and dt_bias as parameters of a set, so that the gradient check sees them.
struct GateParameters {
  ParameterSet<double> set;
  int a_log, dt_bias;
  GateParameters(Runtime& runtime, std::int64_t heads, std::int64_t biases) {
    a_log = set.declare("A_log", Shape{heads}, false, {});
    dt_bias = set.declare("dt_bias", Shape{biases}, false, {});
    set.allocate(runtime);
    testing::randomise(runtime, set, 3, 0.8);
  }
};

TEST(GdnGates, FollowTheirDefinition) {
  Runtime runtime;
  const auto projection = random_tensor<double>(runtime, Shape{5, 9}, 1, 3.0);
  const auto a_log = random_tensor<double>(runtime, Shape{4}, 2);
  const auto dt_bias = random_tensor<double>(runtime, Shape{4}, 3);
  const auto gates =
      gdn_gates_forward<double>(runtime, {projection, 1, 4}, {projection, 5, 4}, a_log, dt_bias);
  const auto p = host(runtime, projection), al = host(runtime, a_log), dt = host(runtime, dt_bias);
  std::vector<double> g, beta;
  for (std::size_t t = 0; t < 5; ++t)
    for (std::size_t h = 0; h < 4; ++h) {
      beta.push_back(sigmoid_of(p[t * 9 + 1 + h]));
      g.push_back(-std::exp(al[h]) * softplus_of(p[t * 9 + 5 + h] + dt[h]));
    }
  EXPECT_LE(testing::relative_error(host(runtime, gates.g), g), 1e-14);
  EXPECT_LE(testing::relative_error(host(runtime, gates.beta), beta), 1e-14);
}

TEST(GdnGates, GradientsMatchCentralDifferences) {
  Runtime runtime;
  for (std::int64_t tokens : {1, 2, 64, 131}) {
    GateParameters p(runtime, 4, 4);
    const auto x = random_tensor<double>(runtime, Shape{tokens, 9}, 4);
    testing::GradientCase layer;
    layer.inputs = {{"projection", x}};
    layer.parameters = &p.set;
    layer.forward = [&](Context& c) {
      const auto gates = gdn_gates_forward<double>(c.runtime, {x, 1, 4}, {x, 5, 4}, p.set.value(p.a_log),
                                                   p.set.value(p.dt_bias));
      return testing::concatenate<double>(c.runtime, {gates.g, gates.beta});
    };
    layer.backward = [&](Context& c, const Tensor<double>& dy) -> std::vector<Tensor<double>> {
      const auto dx = c.runtime.allocate_zero<double>("dx", x.shape());
      gdn_gates_backward<double>(c.runtime, {x, 1, 4}, {x, 5, 4}, p.set.value(p.a_log),
                                 p.set.value(p.dt_bias), dy.rows(0, tokens * 4),
                                 dy.rows(tokens * 4, tokens * 8), {dx, 1, 4}, {dx, 5, 4},
                                 p.set.gradient(p.a_log), p.set.gradient(p.dt_bias));
      return {dx};
    };
    testing::check_gradients(runtime, layer);
  }
}

TEST(GdnGates, StayFiniteForLargeProjections) {
  Runtime runtime;
  const std::vector<float> values{-200.0f, 200.0f, -200.0f, 200.0f};
  const auto x = from_vector(runtime.compute(), runtime.arena(), "x", Shape{1, 4}, values);
  const auto zero = runtime.allocate_zero<float>("zero", Shape{2});
  const auto gates = gdn_gates_forward<float>(runtime, {x, 0, 2}, {x, 2, 2}, zero, zero);
  for (float g : host(runtime, gates.g)) EXPECT_TRUE(std::isfinite(g) && g <= 0.0f) << g;
  for (float beta : host(runtime, gates.beta)) EXPECT_TRUE(beta >= 0.0f && beta <= 1.0f) << beta;
}

TEST(Gdn2Gates, KeepTheirAccuracyInFloat) {
  // From f = -80, where g is about exp(-80), to f = 80, where softplus is linear; one row of an odd number of
  // channels.
  Runtime runtime;
  constexpr std::int64_t count = 641;
  std::vector<float> f;
  for (std::int64_t i = 0; i < count; ++i) f.push_back(0.25f * static_cast<float>(i - 320));
  const QkvShape shape{1, 1, count, 1};
  std::vector<float> row = f;
  row.insert(row.end(), f.begin(), f.end());
  row.push_back(0.0f);
  const auto x = from_vector(runtime.compute(), runtime.arena(), "x", Shape{1, 2 * count + 1}, row);
  const auto a_log = runtime.allocate_zero<float>("A_log", Shape{1});
  const auto dt_bias = runtime.allocate_zero<float>("dt_bias", Shape{count});
  const auto gates = gdn2_gates_forward<float>(runtime, shape, {x, 0, count}, {x, count, count},
                                               {x, 2 * count, 1}, a_log, dt_bias);
  const auto g = host(runtime, gates.g), b = host(runtime, gates.b);
  for (std::size_t i = 0; i < f.size(); ++i) {
    const double decay = -softplus_of(f[i]), open = sigmoid_of(f[i]);
    EXPECT_NEAR(g[i], decay, 1e-6 * std::abs(decay)) << f[i];
    EXPECT_NEAR(b[i], open, 1e-6 * open) << f[i];
  }
}

struct Gdn2Columns {
  std::int64_t f = 1, b = f + grouped.keys(), w = b + grouped.keys(), width = w + grouped.values() + 2;
};

TEST(Gdn2Gates, FollowTheirDefinition) {
  Runtime runtime;
  const Gdn2Columns at;
  const std::int64_t tokens = 3;
  const auto x = random_tensor<double>(runtime, Shape{tokens, at.width}, 5, 2.0);
  const auto a_log = random_tensor<double>(runtime, Shape{grouped.key_heads}, 6);
  const auto dt_bias = random_tensor<double>(runtime, Shape{grouped.keys()}, 7);
  const auto gates =
      gdn2_gates_forward<double>(runtime, grouped, {x, at.f, grouped.keys()}, {x, at.b, grouped.keys()},
                                 {x, at.w, grouped.values()}, a_log, dt_bias);
  const auto p = host(runtime, x), al = host(runtime, a_log), dt = host(runtime, dt_bias);
  std::vector<double> g, b, w;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto in = [&](std::int64_t column) { return p[static_cast<std::size_t>(t * at.width + column)]; };
    for (std::int64_t c = 0; c < grouped.keys(); ++c) {
      const auto head = static_cast<std::size_t>(c / grouped.key_dim);
      g.push_back(-std::exp(al[head]) * softplus_of(in(at.f + c) + dt[static_cast<std::size_t>(c)]));
      b.push_back(sigmoid_of(in(at.b + c)));
    }
    for (std::int64_t c = 0; c < grouped.values(); ++c) w.push_back(sigmoid_of(in(at.w + c)));
  }
  EXPECT_LE(testing::relative_error(host(runtime, gates.g), g), 1e-14);
  EXPECT_LE(testing::relative_error(host(runtime, gates.b), b), 1e-14);
  EXPECT_LE(testing::relative_error(host(runtime, gates.w), w), 1e-14);
}

TEST(Gdn2Gates, GradientsMatchCentralDifferences) {
  Runtime runtime;
  const Gdn2Columns at;
  for (std::int64_t tokens : {1, 32, 70}) {
    GateParameters p(runtime, grouped.key_heads, grouped.keys());
    const auto x = random_tensor<double>(runtime, Shape{tokens, at.width}, 8);
    const auto f = [&](const Tensor<double>& of) { return ColumnSlice<double>{of, at.f, grouped.keys()}; };
    const auto b = [&](const Tensor<double>& of) { return ColumnSlice<double>{of, at.b, grouped.keys()}; };
    const auto w = [&](const Tensor<double>& of) { return ColumnSlice<double>{of, at.w, grouped.values()}; };
    Gdn2Gates<double> gates;
    testing::GradientCase layer;
    layer.inputs = {{"projection", x}};
    layer.parameters = &p.set;
    layer.forward = [&](Context& c) {
      gates = gdn2_gates_forward<double>(c.runtime, grouped, f(x), b(x), w(x), p.set.value(p.a_log),
                                         p.set.value(p.dt_bias));
      return testing::concatenate<double>(c.runtime, {gates.g, gates.b, gates.w});
    };
    layer.backward = [&](Context& c, const Tensor<double>& dy) -> std::vector<Tensor<double>> {
      const auto dx = c.runtime.allocate_zero<double>("dx", x.shape());
      std::int64_t begin = 0;
      Gdn2GateGradients<double> d;
      d.dg = testing::next_part(dy, begin, gates.g.shape());
      d.db = testing::next_part(dy, begin, gates.b.shape());
      d.dw = testing::next_part(dy, begin, gates.w.shape());
      gdn2_gates_backward<double>(c.runtime, grouped, f(x), gates.b, gates.w, p.set.value(p.a_log),
                                  p.set.value(p.dt_bias), d, f(dx), b(dx), w(dx), p.set.gradient(p.a_log),
                                  p.set.gradient(p.dt_bias));
      return {dx};
    };
    testing::check_gradients(runtime, layer, {.max_entries = 80});
  }
}

TEST(Gates, RejectWrongShapes) {
  Runtime runtime;
  const auto x = runtime.allocate_zero<float>("x", Shape{3, 40});
  const auto three = runtime.allocate_zero<float>("three", Shape{3});
  const auto four = runtime.allocate_zero<float>("four", Shape{4});
  EXPECT_THROW(gdn_gates_forward<float>(runtime, {x, 0, 4}, {x, 4, 4}, three, four), ShapeError);
  EXPECT_THROW(gdn_gates_forward<float>(runtime, {x, 0, 4}, {x, 4, 5}, four, four), ShapeError);
  EXPECT_THROW(gdn2_gates_forward<float>(runtime, grouped, {x, 0, 6}, {x, 6, 6}, {x, 12, 19}, three, four),
               ShapeError);
}

}  // namespace
}  // namespace deltaport
