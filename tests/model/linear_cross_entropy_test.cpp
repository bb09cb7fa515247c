// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/linear_cross_entropy.hpp"

#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

template <class T>
struct Fixture {
  Fixture(std::int64_t vocab, std::int64_t width, std::int64_t chunk)
      : weight{&parameters, parameters.declare("w", Shape{vocab, width}, true, {})}, loss(weight, chunk) {
    parameters.allocate(runtime);
    randomise(runtime, parameters, 5, 0.5);
  }
  Tensor<std::int32_t> ids(const std::vector<std::int32_t>& values) {
    return from_vector(runtime.compute(), runtime.arena(), "labels",
                       Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  Runtime runtime;
  ParameterSet<T> parameters;
  Parameter<T> weight;
  LinearCrossEntropy<T> loss;
};

std::vector<std::int32_t> some_labels(std::size_t tokens, std::int32_t vocab) {
  std::vector<std::int32_t> labels(tokens);
  for (std::size_t t = 0; t < tokens; ++t)
    labels[t] =
        t % 5 == 3 ? ignored_label : static_cast<std::int32_t>((t * 7919) % static_cast<std::size_t>(vocab));
  return labels;
}

/// Everything at once, in double.
struct Dense {
  double loss = 0.0;
  std::vector<double> d_hidden, d_weight;
  Dense(const std::vector<double>& h, const std::vector<double>& w, const std::vector<std::int32_t>& labels,
        std::size_t vocab, double scale)
      : d_hidden(h.size(), 0.0), d_weight(w.size(), 0.0) {
    const std::size_t width = w.size() / vocab;
    for (std::size_t t = 0; t < labels.size(); ++t) {
      if (labels[t] == ignored_label) continue;
      std::vector<double> p(vocab, 0.0);
      double sum = 0.0;
      for (std::size_t v = 0; v < vocab; ++v) {
        for (std::size_t c = 0; c < width; ++c) p[v] += h[t * width + c] * w[v * width + c];
        sum += std::exp(p[v]);
      }
      loss += std::log(sum) - p[static_cast<std::size_t>(labels[t])];
      for (std::size_t v = 0; v < vocab; ++v) {
        const double d =
            scale * (std::exp(p[v]) / sum - (v == static_cast<std::size_t>(labels[t]) ? 1.0 : 0.0));
        for (std::size_t c = 0; c < width; ++c) {
          d_hidden[t * width + c] += d * w[v * width + c];
          d_weight[v * width + c] += d * h[t * width + c];
        }
      }
    }
  }
};

template <class T>
void compare_with_dense(std::int64_t tokens, std::int64_t vocab, std::int64_t chunk, double tolerance) {
  Fixture<T> f(vocab, 13, chunk);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const auto hidden = random_tensor<T>(f.runtime, {tokens, 13}, 2);
  const auto labels = some_labels(static_cast<std::size_t>(tokens), static_cast<std::int32_t>(vocab));
  const auto sum = from_vector<double>(f.runtime.compute(), f.runtime.arena(), "loss", {1}, {100.0});
  Tensor<T> d_hidden;
  f.loss.forward_backward(context, hidden, f.ids(labels), 0.125, sum, d_hidden);
  const auto wide = [](const std::vector<T>& values) {
    std::vector<double> result;
    for (const T value : values) result.push_back(static_cast<double>(widen(value)));
    return result;
  };
  const Dense want(wide(host(f.runtime, hidden)), wide(host(f.runtime, f.weight.value())), labels,
                   static_cast<std::size_t>(vocab), 0.125);
  EXPECT_NEAR(host(f.runtime, sum)[0] - 100.0, want.loss, tolerance * want.loss) << tokens << " " << vocab;
  EXPECT_LE(relative_error(wide(host(f.runtime, d_hidden)), want.d_hidden), tolerance);
  EXPECT_LE(relative_error(host(f.runtime, f.weight.gradient()), want.d_weight), tolerance);
  const auto only = f.runtime.template allocate_zero<double>("loss", Shape{1});
  f.loss.evaluate(context, hidden, f.ids(labels), only);
  EXPECT_NEAR(host(f.runtime, only)[0], want.loss, tolerance * want.loss);
}

TEST(LinearCrossEntropy, equals_the_dense_loss_in_double) {
  for (std::int64_t chunk : {1, 4, 7, 64}) compare_with_dense<double>(23, 57, chunk, 1e-12);
  compare_with_dense<double>(1, 2, 16, 1e-12);
  compare_with_dense<float>(23, 57, 7, 2e-6);
  compare_with_dense<float>(150, 57, 70, 2e-6);  // 64, 64, 22
}

// Logits and gradients are rounded to halves: 2^-9 each.
TEST(LinearCrossEntropy, equals_the_dense_loss_in_bfloat16) {
  for (std::int64_t chunk : {7, 64}) compare_with_dense<bfloat16>(23, 57, chunk, 6e-3);
  compare_with_dense<bfloat16>(23, 1000, 16, 6e-3);
}

TEST(LinearCrossEntropy, ChunksAreOfAboutTheSameSize) {
  EXPECT_EQ(loss_rows(0, 768), 0);
  EXPECT_EQ(loss_rows(700, 768), 700);
  EXPECT_EQ(loss_rows(768, 768), 768);
  EXPECT_EQ(loss_rows(769, 768), 448);
  EXPECT_EQ(loss_rows(2048, 768), 704);
  EXPECT_EQ(loss_rows(2048, 1024), 1024);
  EXPECT_EQ(loss_rows(23, 7), 7);
  EXPECT_EQ(loss_rows(5, 1), 1);
}

TEST(LinearCrossEntropy, a_large_vocabulary_keeps_its_accuracy_in_float32) {
  compare_with_dense<float>(5, 248320, 2, 5e-6);
}

TEST(LinearCrossEntropy, gradients_match_central_differences) {
  Fixture<double> f(17, 6, 4);
  const auto labels = f.ids(some_labels(9, 17));
  GradientCase layer;
  layer.inputs = {{"hidden", random_tensor<double>(f.runtime, {9, 6}, 2)}};
  layer.parameters = &f.parameters;
  Tensor<double> d_hidden;
  layer.forward = [&](Context& c) {
    const auto sum = f.runtime.allocate_zero<double>("loss", Shape{1});
    f.loss.evaluate(c, layer.inputs[0].value, labels, sum);
    return sum;
  };
  layer.backward = [&](Context& c, const Tensor<double>& dy) {
    const auto sum = f.runtime.allocate_zero<double>("loss", Shape{1});
    f.loss.forward_backward(c, layer.inputs[0].value, labels, host(f.runtime, dy)[0], sum, d_hidden);
    return std::vector<Tensor<double>>{d_hidden};
  };
  check_gradients(f.runtime, layer);
}

TEST(LinearCrossEntropy, fully_masked_tokens_give_nothing_even_with_infinite_logits) {
  Fixture<float> f(9, 4, 2);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  std::vector<float> values(5 * 4, 1.0f);
  for (std::size_t i = 0; i < 8; ++i) values[i] = 3e38f;  // the logits of the first chunk overflow
  const auto hidden = from_vector(f.runtime.compute(), f.runtime.arena(), "hidden", {5, 4}, values);
  const auto sum = f.runtime.allocate_zero<double>("loss", Shape{1});
  Tensor<float> d_hidden;
  f.loss.forward_backward(context, hidden, f.ids(std::vector<std::int32_t>(5, ignored_label)), 1.0, sum,
                          d_hidden);
  EXPECT_EQ(host(f.runtime, sum)[0], 0.0);
  for (float g : host(f.runtime, d_hidden)) EXPECT_EQ(g, 0.0f);
  for (float g : host(f.runtime, f.weight.gradient())) EXPECT_EQ(g, 0.0f);
}

TEST(LinearCrossEntropy, large_logits_do_not_overflow) {
  Fixture<float> f(3, 1, 8);
  const std::vector<float> w = {1000.0f, -1000.0f, 0.0f};
  copy_from_host(f.runtime.compute(), f.weight.value(), w.data());
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const auto sum = f.runtime.allocate_zero<double>("loss", Shape{1});
  Tensor<float> d_hidden;
  const auto hidden =
      from_vector<float>(f.runtime.compute(), f.runtime.arena(), "hidden", {2, 1}, {1.0f, 1.0f});
  f.loss.forward_backward(context, hidden, f.ids({0, 1}), 1.0, sum, d_hidden);
  EXPECT_DOUBLE_EQ(host(f.runtime, sum)[0], 2000.0);
  EXPECT_EQ(host(f.runtime, d_hidden)[0], 0.0f);
  EXPECT_EQ(host(f.runtime, d_hidden)[1], 2000.0f);
}

TEST(LinearCrossEntropy, a_label_outside_the_vocabulary_makes_the_loss_nan) {
  for (std::int32_t bad : {9, -1, 1000000}) {
    Fixture<float> f(9, 4, 2);
    SavedTensors saved;
    Context context{f.runtime, saved, Mode::train};
    const auto sum = f.runtime.allocate_zero<double>("loss", Shape{1});
    Tensor<float> d_hidden;
    f.loss.forward_backward(context, random_tensor<float>(f.runtime, {3, 4}, 1), f.ids({1, bad, 2}), 1.0, sum,
                            d_hidden);
    EXPECT_TRUE(std::isnan(host(f.runtime, sum)[0])) << bad;
  }
}

template <class T>
void expect_one_chunk_of_logits(std::size_t tile_bytes) {
  const std::int64_t tokens = 256, vocab = 1000, chunk = 16;
  Fixture<T> f(vocab, 8, chunk);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const auto hidden = random_tensor<T>(f.runtime, {tokens, 8}, 1);
  const auto labels = f.ids(some_labels(tokens, vocab));
  const auto sum = f.runtime.template allocate_zero<double>("loss", Shape{1});
  Tensor<T> d_hidden = f.runtime.template allocate<T>("d_hidden", hidden.shape());
  f.runtime.arena().reset_peak();
  const std::size_t before = f.runtime.arena().stats().allocated;
  f.loss.forward_backward(context, hidden, labels, 1.0, sum, d_hidden);
  const std::size_t logits_bytes = static_cast<std::size_t>(chunk * vocab) * sizeof(T);
  const std::size_t row_bytes = static_cast<std::size_t>(tokens) * sizeof(double);
  EXPECT_LE(f.runtime.arena().stats().allocated_peak - before, logits_bytes + row_bytes + tile_bytes + 512);
  EXPECT_EQ(f.runtime.arena().stats().allocated, before);
}

TEST(LinearCrossEntropy, never_holds_more_than_one_chunk_of_logits) {
  expect_one_chunk_of_logits<float>(0);
  // On hosts products widen all of their operands, which are small here.
  expect_one_chunk_of_logits<bfloat16>(runs_on_host ? sizeof(float) * (1000 * 8 + 16 * 8 + 1000 * 16) + 512
                                                    : 0);
}

TEST(LinearCrossEntropy, logits_are_the_product_and_shapes_are_checked) {
  Fixture<float> f(3, 2, 8);
  const std::vector<float> w = {1, 2, 3, 4, 5, 6};
  copy_from_host(f.runtime.compute(), f.weight.value(), w.data());
  const auto hidden = from_vector<float>(f.runtime.compute(), f.runtime.arena(), "hidden", {1, 2}, {1, 10});
  EXPECT_EQ(host(f.runtime, f.loss.logits(f.runtime, hidden)), (std::vector<float>{21, 43, 65}));
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::evaluate};
  const auto sum = f.runtime.allocate_zero<double>("loss", Shape{1});
  EXPECT_THROW(f.loss.evaluate(context, hidden, f.ids({1, 2}), sum), ShapeError);
  EXPECT_THROW(f.loss.evaluate(context, hidden.reshape({2, 1}), f.ids({1, 2}), sum), ShapeError);
  EXPECT_THROW(LinearCrossEntropy<float>(f.weight, 0), ConfigError);
}

}  // namespace
}  // namespace deltaport
