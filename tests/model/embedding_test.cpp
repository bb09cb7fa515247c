// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/embedding.hpp"

#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

template <class T>
struct Fixture {
  Fixture(std::int64_t vocab, std::int64_t hidden)
      : embedding(parameters, "model.embed_tokens", config(vocab, hidden)) {
    parameters.allocate(runtime);
    randomise(runtime, parameters, 5, 1.0);
  }
  static ModelConfig config(std::int64_t vocab, std::int64_t hidden) {
    ModelConfig c;
    c.vocab_size = vocab;
    c.hidden_size = hidden;
    return c;
  }
  Tensor<std::int32_t> ids(const std::vector<std::int32_t>& values) {
    return from_vector(runtime.compute(), runtime.arena(), "tokens",
                       Shape{static_cast<std::int64_t>(values.size())}, values);
  }
  Runtime runtime;
  ParameterSet<T> parameters;
  Embedding<T> embedding;
};

TEST(Embedding, forward_copies_rows_and_backward_adds_them) {
  const std::size_t d = 37;
  Fixture<float> f(11, static_cast<std::int64_t>(d));
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const std::vector<std::int32_t> tokens = {3, 0, 10, 3, 3, 7, 0};
  const auto table = host(f.runtime, f.embedding.weight().value());
  std::vector<float> gradient(table.size(), 0.0f);
  for (int call = 0; call < 2; ++call) {
    const auto y = host(f.runtime, f.embedding.forward(context, f.ids(tokens)));
    const auto dy =
        random_values<float>(static_cast<std::int64_t>(y.size()), 8 + static_cast<std::uint64_t>(call));
    f.embedding.backward(context,
                         from_vector(f.runtime.compute(), f.runtime.arena(), "dy", Shape{7, 37}, dy));
    for (std::size_t t = 0; t < tokens.size(); ++t)
      for (std::size_t i = 0; i < d; ++i) {
        EXPECT_EQ(y[t * d + i], table[static_cast<std::size_t>(tokens[t]) * d + i]);
        gradient[static_cast<std::size_t>(tokens[t]) * d + i] += dy[t * d + i];
      }
  }
  EXPECT_TRUE(saved.empty());
  EXPECT_TRUE(same_bits(host(f.runtime, f.embedding.weight().gradient()), gradient));
}

TEST(Embedding, ids_outside_the_vocabulary_become_nan_and_write_nothing) {
  Fixture<float> f(4, 3);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const auto y = host(f.runtime, f.embedding.forward(context, f.ids({1, 4, -1})));
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(y[i]), i >= 3);
  f.embedding.backward(context, random_tensor<float>(f.runtime, {3, 3}, 1));
  const auto gradient = host(f.runtime, f.parameters.flat_gradients());
  for (std::size_t i = 0; i < gradient.size(); ++i) EXPECT_EQ(gradient[i] != 0.0f, i >= 3 && i < 6) << i;
}

TEST(Embedding, rejects_wrong_shapes) {
  Fixture<float> f(4, 3);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  EXPECT_THROW(f.embedding.forward(context, f.ids({1, 2}).reshape({1, 2})), ShapeError);
  f.embedding.forward(context, f.ids({1, 2}));
  EXPECT_THROW(f.embedding.backward(context, random_tensor<float>(f.runtime, {2, 4}, 1)), ShapeError);
}

}  // namespace
}  // namespace deltaport
