// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/qkv_conv.hpp"

#include <cmath>

#include "model/concatenate.hpp"
#include "model/gradient_check.hpp"

namespace deltaport {
namespace {

using testing::host;
using testing::random_tensor;

constexpr QkvShape small{2, 4, 3, 5};        // H, HV, K, V
constexpr std::int64_t left = 2, right = 3;  // columns of the projection around the convolution's

std::int64_t row_stride(const QkvShape& shape) {
  return left + shape.channels() + right;
}

template <class T>
ColumnSlice<T> slice(const QkvShape& shape, const Tensor<T>& projection) {
  return {projection, left, shape.channels()};
}

// The definition, token by token and channel by channel.
std::vector<double> expected_outputs(const QkvShape& shape, const std::vector<double>& x, std::int64_t tokens,
                                     const std::vector<double>& weight, std::int64_t width,
                                     const std::vector<std::int32_t>& positions) {
  std::vector<double> q, k, v;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> s;
    for (std::int64_t c = 0; c < shape.channels(); ++c) {
      double pre = 0.0;
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t back = width - 1 - i;
        if (positions[static_cast<std::size_t>(t)] < back) continue;
        pre += weight[static_cast<std::size_t>(c * width + i)] *
               x[static_cast<std::size_t>((t - back) * row_stride(shape) + left + c)];
      }
      s.push_back(pre / (1.0 + std::exp(-pre)));
    }
    for (std::int64_t head = 0; head < 2 * shape.key_heads; ++head) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < shape.key_dim; ++i)
        squares += std::pow(s[static_cast<std::size_t>(head * shape.key_dim + i)], 2);
      for (std::int64_t i = 0; i < shape.key_dim; ++i)
        (head < shape.key_heads ? q : k)
            .push_back(s[static_cast<std::size_t>(head * shape.key_dim + i)] / std::sqrt(squares + 1e-6));
    }
    v.insert(v.end(), s.begin() + 2 * shape.keys(), s.end());
  }
  q.insert(q.end(), k.begin(), k.end());
  q.insert(q.end(), v.begin(), v.end());
  return q;
}

template <class T>
Tensor<T> outputs(Runtime& runtime, const QkvConvResult<T>& r) {
  return testing::concatenate<T>(runtime, {r.q, r.k, r.v});
}

class QkvConvWidth : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(QkvConvWidth, MatchesItsDefinitionOverDocumentBoundaries) {
  Runtime runtime;
  const std::int64_t tokens = 40;
  const auto x = random_tensor<double>(runtime, Shape{tokens, row_stride(small)}, 1);
  const auto w = random_tensor<double>(runtime, Shape{small.channels(), 1, GetParam()}, 2);
  const Sequences seqs = make_sequences(runtime, {0, 1, 3, 6, 6, 33, 40}, tokens);
  const auto y = outputs(runtime, qkv_conv_forward(runtime, small, slice(small, x), w, seqs.positions));
  const auto want = expected_outputs(small, host(runtime, x), tokens, host(runtime, w), GetParam(),
                                     host(runtime, seqs.positions));
  EXPECT_LE(testing::relative_error(host(runtime, y), want), 1e-14);
}

TEST_P(QkvConvWidth, GradientsMatchCentralDifferences) {
  Runtime runtime;
  // Blocks of the backward hold 32 tokens: documents end before, at and after its edges.
  for (const auto& cu : {std::vector<std::int32_t>{0, 1}, {0, 1, 3}, {0, 5, 31, 34, 64, 70}}) {
    const std::int64_t tokens = cu.back();
    const Sequences seqs = make_sequences(runtime, cu, tokens);
    const auto x = random_tensor<double>(runtime, Shape{tokens, row_stride(small)}, 3);
    ParameterSet<double> parameters;
    const int index = parameters.declare("conv1d.weight", Shape{small.channels(), 1, GetParam()}, false, {});
    parameters.allocate(runtime);
    testing::randomise(runtime, parameters, 4, 0.7);
    testing::GradientCase layer;
    layer.inputs = {{"x", x}};
    layer.parameters = &parameters;
    QkvConvResult<double> last;
    layer.forward = [&](Context& c) {
      last = qkv_conv_forward(c.runtime, small, slice(small, x), parameters.value(index), seqs.positions);
      return outputs(c.runtime, last);
    };
    layer.backward = [&](Context& c, const Tensor<double>& dy) -> std::vector<Tensor<double>> {
      std::int64_t begin = 0;
      const auto dq = testing::next_part(dy, begin, last.q.shape());
      const auto dk = testing::next_part(dy, begin, last.k.shape());
      const auto dv = testing::next_part(dy, begin, last.v.shape());
      const auto dx = c.runtime.allocate_zero<double>("dx", x.shape());
      qkv_conv_backward(c.runtime, small, slice(small, x), parameters.value(index), seqs.positions, last.rstd,
                        dq, dk, dv, slice(small, dx), parameters.gradient(index));
      return {dx};
    };
    testing::check_gradients(runtime, layer, {.max_entries = 60});
  }
}

INSTANTIATE_TEST_SUITE_P(Taps, QkvConvWidth, ::testing::Values(1, 2, 3, 4));

struct Backward {
  std::vector<float> dx, dweight;
};

Backward run_backward(Runtime& runtime, const std::vector<std::int32_t>& cu, const std::vector<float>& x,
                      const std::vector<float>& dy, const Tensor<float>& w, std::vector<float>* y = nullptr) {
  const std::int64_t tokens = cu.back();
  const Sequences seqs = make_sequences(runtime, cu, tokens);
  const auto xt = from_vector(runtime.compute(), runtime.arena(), "x", Shape{tokens, row_stride(small)}, x);
  const auto r = qkv_conv_forward(runtime, small, slice(small, xt), w, seqs.positions);
  if (y != nullptr) *y = host(runtime, outputs(runtime, r));
  const std::size_t keys = static_cast<std::size_t>(tokens * small.keys());
  const auto at = [&](std::size_t begin, const Shape& shape) {
    const std::vector<float> part(dy.begin() + static_cast<std::ptrdiff_t>(begin),
                                  dy.begin() + static_cast<std::ptrdiff_t>(begin) + shape.size());
    return from_vector(runtime.compute(), runtime.arena(), "dy", shape, part);
  };
  const auto dx = runtime.allocate_zero<float>("dx", xt.shape());
  const auto dw = runtime.allocate_zero<float>("dw", w.shape());
  qkv_conv_backward(runtime, small, slice(small, xt), w, seqs.positions, r.rstd, at(0, r.q.shape()),
                    at(keys, r.k.shape()), at(2 * keys, r.v.shape()), slice(small, dx), dw);
  return {host(runtime, dx), host(runtime, dw)};
}

TEST(QkvConv, LastTokensOfADocumentDoNotReachTheNext) {
  Runtime runtime;
  const std::vector<std::int32_t> cu{0, 30, 70};
  const auto w = random_tensor<float>(runtime, Shape{small.channels(), 1, 4}, 5);
  auto x = testing::random_values<float>(70 * row_stride(small), 6);
  const auto dy = testing::random_values<float>(70 * (small.channels()), 7);
  std::vector<float> y, y_perturbed;
  const Backward before = run_backward(runtime, cu, x, dy, w, &y);
  for (std::int64_t i = 27 * row_stride(small); i < 30 * row_stride(small); ++i)
    x[static_cast<std::size_t>(i)] += 3.0f;
  const Backward after = run_backward(runtime, cu, x, dy, w, &y_perturbed);
  const auto second = [](const std::vector<float>& all, std::int64_t begin) {
    return std::vector<float>(all.begin() + begin, all.end());
  };
  EXPECT_TRUE(testing::same_bits(second(before.dx, 30 * row_stride(small)),
                                 second(after.dx, 30 * row_stride(small))));
  EXPECT_FALSE(testing::same_bits(before.dx, after.dx));
  // Values are the last block of the outputs: rows 30.. of v are its end.
  const std::int64_t v_begin = 70 * 2 * small.keys() + 30 * small.values();
  EXPECT_TRUE(testing::same_bits(second(y, v_begin), second(y_perturbed, v_begin)));
  EXPECT_FALSE(testing::same_bits(y, y_perturbed));
}

TEST(QkvConv, DocumentsEqualThemselvesAloneToTheLastBit) {
  Runtime runtime;
  const auto w = random_tensor<float>(runtime, Shape{small.channels(), 1, 4}, 5);
  for (const std::int32_t boundary : {1, 2, 31, 32, 33, 63, 64, 65}) {
    const std::int32_t total = boundary + 40;
    const auto x = testing::random_values<float>(total * row_stride(small), 6);
    const auto dy = testing::random_values<float>(total * small.channels(), 7);
    const Backward together = run_backward(runtime, {0, boundary, total}, x, dy, w);
    for (const auto& [begin, end] : {std::pair<std::int32_t, std::int32_t>{0, boundary}, {boundary, total}}) {
      // The same tokens' rows of x, and of each of the three parts of dy.
      const auto rows = [&](const std::vector<float>& all, std::int64_t first, std::int64_t width) {
        return std::vector<float>(all.begin() + first + begin * width, all.begin() + first + end * width);
      };
      std::vector<float> part = rows(dy, 0, small.keys());
      for (const auto& more :
           {rows(dy, total * small.keys(), small.keys()), rows(dy, 2 * total * small.keys(), small.values())})
        part.insert(part.end(), more.begin(), more.end());
      const Backward alone = run_backward(runtime, {0, end - begin}, rows(x, 0, row_stride(small)), part, w);
      EXPECT_TRUE(testing::same_bits(rows(together.dx, 0, row_stride(small)), alone.dx))
          << boundary << " " << begin;
    }
  }
}

TEST(QkvConv, RepeatsToTheLastBit) {
  Runtime runtime;
  const auto w = random_tensor<float>(runtime, Shape{small.channels(), 1, 4}, 8);
  const auto x = testing::random_values<float>(200 * row_stride(small), 9);
  const auto dy = testing::random_values<float>(200 * small.channels(), 10);
  const Backward first = run_backward(runtime, {0, 77, 200}, x, dy, w);
  const Backward second = run_backward(runtime, {0, 77, 200}, x, dy, w);
  EXPECT_TRUE(testing::same_bits(first.dx, second.dx));
  EXPECT_TRUE(testing::same_bits(first.dweight, second.dweight));
}

TEST(QkvConv, AZeroHeadHasFiniteGradients) {
  Runtime runtime;
  const auto w = random_tensor<float>(runtime, Shape{small.channels(), 1, 4}, 11);
  const std::vector<float> x(static_cast<std::size_t>(8 * row_stride(small)), 0.0f);
  const auto dy = testing::random_values<float>(8 * small.channels(), 12);
  const Backward result = run_backward(runtime, {0, 8}, x, dy, w);
  for (float value : result.dx) EXPECT_TRUE(std::isfinite(value));
}

TEST(QkvConv, StepsEqualTheWholeSequence) {
  Runtime runtime;
  const std::int64_t tokens = 9;
  for (std::int64_t width = 1; width <= 4; ++width) {
    const auto x = random_tensor<double>(runtime, Shape{tokens, row_stride(small)}, 13);
    const auto w = random_tensor<double>(runtime, Shape{small.channels(), 1, width}, 14);
    const Sequences seqs = make_sequences(runtime, {0, static_cast<std::int32_t>(tokens)}, tokens);
    const auto whole = qkv_conv_forward(runtime, small, slice(small, x), w, seqs.positions);
    const auto state = runtime.allocate_zero<double>("state", Shape{1, small.channels(), width - 1});
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto step = qkv_conv_step(runtime, small, slice(small, x.rows(t, t + 1)), w, state);
      EXPECT_LE(testing::relative_error(host(runtime, step.q), host(runtime, whole.q.rows(t, t + 1))), 1e-14);
      EXPECT_LE(testing::relative_error(host(runtime, step.k), host(runtime, whole.k.rows(t, t + 1))), 1e-14);
      EXPECT_LE(testing::relative_error(host(runtime, step.v), host(runtime, whole.v.rows(t, t + 1))), 1e-14);
    }
  }
}

// Runs of three sequences, some of them empty or shorter than the taps, against their whole documents.
TEST(QkvConv, PrefillEqualsTheWholeSequence) {
  Runtime runtime;
  const std::vector<std::int32_t> whole = {0, 11, 13, 30};
  for (const QkvShape& shape : {small, QkvShape{2, 4, 16, 32}})
    for (std::int64_t width = 1; width <= 4; ++width) {
      const auto x = random_tensor<double>(runtime, Shape{30, row_stride(shape)}, 13);
      const auto w = random_tensor<double>(runtime, Shape{shape.channels(), 1, width}, 14);
      const auto want =
          qkv_conv_forward(runtime, shape, slice(shape, x), w, make_sequences(runtime, whole, 30).positions);
      const auto state = runtime.allocate_zero<double>("state", Shape{3, shape.channels(), width - 1});
      std::vector<std::int32_t> seen(3, 0);
      for (const std::vector<std::int32_t>& lengths :
           {std::vector<std::int32_t>{1, 0, 9}, {2, 1, 0}, {5, 0, 4}, {3, 1, 4}}) {
        std::vector<std::int32_t> cu = {0};
        std::vector<Tensor<double>> rows;
        std::vector<Tensor<double>> q, k, v;
        for (std::size_t n = 0; n < 3; ++n) {
          const std::int64_t begin = whole[n] + seen[n], end = begin + lengths[n];
          rows.push_back(x.rows(begin, end));
          q.push_back(want.q.rows(begin, end));
          k.push_back(want.k.rows(begin, end));
          v.push_back(want.v.rows(begin, end));
          cu.push_back(cu.back() + lengths[n]);
          seen[n] += lengths[n];
        }
        const auto run = testing::concatenate(runtime, rows).reshape(Shape{cu.back(), row_stride(shape)});
        const auto got = qkv_conv_prefill(runtime, shape, slice(shape, run), w,
                                          make_sequences(runtime, cu, cu.back()), state);
        const auto close = [&](const Tensor<double>& part, const std::vector<Tensor<double>>& parts) {
          return testing::relative_error(host(runtime, part),
                                         host(runtime, testing::concatenate(runtime, parts)));
        };
        EXPECT_LE(close(got.q, q), 1e-14) << width;
        EXPECT_LE(close(got.k, k), 1e-14) << width;
        EXPECT_LE(close(got.v, v), 1e-14) << width;
      }
      EXPECT_EQ(seen, (std::vector<std::int32_t>{11, 2, 17}));
    }
}

TEST(QkvConv, RejectsWrongShapes) {
  Runtime runtime;
  const auto x = runtime.allocate_zero<float>("x", Shape{4, row_stride(small)});
  const Sequences seqs = make_sequences(runtime, {0, 4}, 4);
  const auto five_taps = runtime.allocate_zero<float>("w", Shape{small.channels(), 1, 5});
  const auto few_channels = runtime.allocate_zero<float>("w", Shape{small.channels() - 1, 1, 4});
  EXPECT_THROW(qkv_conv_forward(runtime, small, slice(small, x), five_taps, seqs.positions), ShapeError);
  EXPECT_THROW(qkv_conv_forward(runtime, small, slice(small, x), few_channels, seqs.positions), ShapeError);
  EXPECT_THROW((ColumnSlice<float>{x, left + right + 1, small.channels()}), ShapeError);
  EXPECT_THROW(QkvShape::of({.num_key_heads = 4, .num_value_heads = 6}), ConfigError);
}

}  // namespace
}  // namespace deltaport
