// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/gated_norm.hpp"

#include <cmath>

#include "model/gradient_check.hpp"

namespace deltaport {
namespace {

using testing::host;
using testing::random_tensor;

constexpr std::int64_t heads = 3, width = 7, left = 2, stride = left + heads * width + 1;
constexpr double eps = 1e-6;

TEST(GatedNorm, FollowsItsDefinition) {
  Runtime runtime;
  const std::int64_t tokens = 4;
  const auto x = random_tensor<double>(runtime, Shape{tokens, heads, width}, 1);
  const auto z = random_tensor<double>(runtime, Shape{tokens, stride}, 2);
  const auto w = random_tensor<double>(runtime, Shape{width}, 3);
  const auto y = gated_norm_forward<double>(runtime, x, {z, left, heads * width}, w, eps).y;
  const auto xs = host(runtime, x), zs = host(runtime, z), ws = host(runtime, w);
  std::vector<double> want;
  for (std::size_t row = 0; row < static_cast<std::size_t>(tokens * heads); ++row) {
    double squares = 0.0;
    for (std::size_t c = 0; c < width; ++c) squares += xs[row * width + c] * xs[row * width + c];
    for (std::size_t c = 0; c < width; ++c) {
      const double gate = zs[row / heads * stride + left + row % heads * width + c];
      want.push_back(ws[c] * xs[row * width + c] / std::sqrt(squares / width + eps) * gate /
                     (1.0 + std::exp(-gate)));
    }
  }
  EXPECT_LE(testing::relative_error(host(runtime, y), want), 1e-14);
}

TEST(GatedNorm, GradientsMatchCentralDifferences) {
  Runtime runtime;
  for (std::int64_t tokens : {1, 2, 50}) {
    const auto x = random_tensor<double>(runtime, Shape{tokens, heads, width}, 4);
    const auto z = random_tensor<double>(runtime, Shape{tokens, stride}, 5);
    ParameterSet<double> parameters;
    const int w = parameters.declare("norm.weight", Shape{width}, false, {});
    parameters.allocate(runtime);
    testing::randomise(runtime, parameters, 6, 1.0);
    GatedNormResult<double> last;
    testing::GradientCase layer;
    layer.inputs = {{"x", x}, {"z", z}};
    layer.parameters = &parameters;
    layer.forward = [&](Context& c) {
      last = gated_norm_forward<double>(c.runtime, x, {z, left, heads * width}, parameters.value(w), eps);
      return last.y;
    };
    layer.backward = [&](Context& c, const Tensor<double>& dy) -> std::vector<Tensor<double>> {
      const auto dz = c.runtime.allocate_zero<double>("dz", z.shape());
      const auto d =
          gated_norm_backward<double>(c.runtime, x, {z, left, heads * width}, parameters.value(w), last.rstd,
                                      dy, {dz, left, heads * width}, parameters.gradient(w));
      EXPECT_LE(testing::relative_error(host(c.runtime, d.y), host(c.runtime, last.y)), 1e-14);
      return {d.dx, dz};
    };
    testing::check_gradients(runtime, layer, {.max_entries = 60});
  }
}

TEST(GatedNorm, RepeatsToTheLastBitAndAddsToTheWeightGradient) {
  Runtime runtime;
  const auto x = random_tensor<float>(runtime, Shape{300, heads, width}, 7);
  const auto z = random_tensor<float>(runtime, Shape{300, stride}, 8);
  const auto w = random_tensor<float>(runtime, Shape{width}, 9);
  const auto dy = random_tensor<float>(runtime, Shape{300, heads * width}, 10);
  const auto rstd = gated_norm_forward<float>(runtime, x, {z, left, heads * width}, w, eps).rstd;
  const auto dz = runtime.allocate_zero<float>("dz", z.shape());
  std::vector<std::vector<float>> dx, dw;
  const auto accumulated = runtime.allocate_zero<float>("dw", w.shape());
  for (int i = 0; i < 2; ++i) {
    dx.push_back(host(runtime, gated_norm_backward<float>(runtime, x, {z, left, heads * width}, w, rstd, dy,
                                                          {dz, left, heads * width}, accumulated)
                                   .dx));
    dw.push_back(host(runtime, accumulated));
  }
  EXPECT_TRUE(testing::same_bits(dx[0], dx[1]));
  for (std::size_t c = 0; c < width; ++c) EXPECT_FLOAT_EQ(dw[1][c], 2 * dw[0][c]);
}

TEST(GatedNorm, RejectsWrongShapes) {
  Runtime runtime;
  const auto x = runtime.allocate_zero<float>("x", Shape{4, heads, width});
  const auto z = runtime.allocate_zero<float>("z", Shape{4, stride});
  const auto w = runtime.allocate_zero<float>("w", Shape{width + 1});
  EXPECT_THROW(gated_norm_forward<float>(runtime, x, {z, left, heads * width}, w, eps), ShapeError);
  EXPECT_THROW(gated_norm_forward<float>(runtime, x, {z, left, width}, w.rows(0, width), eps), ShapeError);
}

}  // namespace
}  // namespace deltaport
