// SPDX-License-Identifier: Apache-2.0
#include "model/small_lm.hpp"

namespace deltaport {
namespace {

using recurrence::Implementation;
using testing::DeviceDocuments;
using testing::Documents;
using testing::Head;
using testing::host;
using testing::same_bits;
using testing::small_lm_config;
using testing::SmallLm;

template <class T>
std::vector<T> rows_of(const std::vector<T>& all, std::int64_t width, std::int64_t begin, std::int64_t end) {
  return std::vector<T>(all.begin() + begin * width, all.begin() + end * width);
}

// Hidden states, and the gradient that reaches the embedding of every token, for a given gradient of the
// hidden states.
template <class T>
struct Passes {
  std::vector<T> hidden, embedding_gradient;
};

template <class T>
Passes<T> run_passes(Runtime& runtime, SmallLm<T>& lm, const Documents& documents,
                     const std::vector<T>& d_hidden) {
  SavedTensors saved;
  Context context{runtime, saved};
  const DeviceDocuments d(runtime, documents);
  lm.model.parameters().zero_gradients(runtime);
  Passes<T> result;
  const Tensor<T> hidden = lm.model.hidden(context, d.tokens, d.sequences);
  result.hidden = host(runtime, hidden);
  const auto gradient = from_vector(runtime.compute(), runtime.arena(), "d hidden", hidden.shape(), d_hidden);
  lm.model.hidden_backward(context, gradient, d.sequences);
  EXPECT_TRUE(saved.empty());
  result.embedding_gradient = host(runtime, lm.model.parameters().gradient(0));
  return result;
}

template <class T>
class HybridLmPacking : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(HybridLmPacking, Types);

// Tokens are all different, so row t of the embedding's gradient is dx of token t. Up to rounding: a BLAS may
// sum in another order when a product has fewer rows.
TYPED_TEST(HybridLmPacking, DocumentsEqualThemselvesAlone) {
  Runtime runtime;
  const double tolerance = sizeof(TypeParam) == 4 ? 1e-4 : 1e-12;
  ModelConfig config = small_lm_config(Head::untied);
  config.vocab_size = 200;
  SmallLm<TypeParam> lm(runtime, config);
  const std::int64_t hidden = config.hidden_size;
  for (const std::int32_t boundary : {1, 15, 16, 17, 63, 64, 65}) {
    const std::int32_t total = boundary + 37;
    Documents packed({0, boundary, total}, config.vocab_size, 4);
    for (std::int32_t t = 0; t < total; ++t) packed.tokens[static_cast<std::size_t>(t)] = t;
    const auto d_hidden = testing::random_values<TypeParam>(total * hidden, 5);
    const auto together = run_passes(runtime, lm, packed, d_hidden);
    for (const auto& [begin, end] : {std::pair<std::int32_t, std::int32_t>{0, boundary}, {boundary, total}}) {
      Documents alone({0, end - begin}, config.vocab_size, 4);
      alone.tokens.assign(packed.tokens.begin() + begin, packed.tokens.begin() + end);
      const auto separate = run_passes(runtime, lm, alone, rows_of(d_hidden, hidden, begin, end));
      EXPECT_LE(testing::relative_error(separate.hidden, rows_of(together.hidden, hidden, begin, end)),
                tolerance);
      EXPECT_LE(testing::relative_error(rows_of(separate.embedding_gradient, hidden, begin, end),
                                        rows_of(together.embedding_gradient, hidden, begin, end)),
                tolerance);
    }
  }
}

// The same number of rows, so to the last bit.
TYPED_TEST(HybridLmPacking, DocumentsDoNotSeeEachOther) {
  Runtime runtime;
  ModelConfig config = small_lm_config(Head::untied);
  config.vocab_size = 300;
  SmallLm<TypeParam> lm(runtime, config);
  const std::int64_t hidden = config.hidden_size;
  for (const std::int32_t boundary : {1, 16, 63, 64, 65}) {
    const std::int32_t total = boundary + 37;
    Documents documents({0, boundary, total}, config.vocab_size, 4);
    for (std::int32_t t = 0; t < total; ++t) documents.tokens[static_cast<std::size_t>(t)] = t;
    const auto d_hidden = testing::random_values<TypeParam>(total * hidden, 5);
    const auto before = run_passes(runtime, lm, documents, d_hidden);
    for (const auto& [begin, end] : {std::pair<std::int32_t, std::int32_t>{0, boundary}, {boundary, total}}) {
      Documents changed = documents;
      for (std::int32_t t = begin; t < end; ++t) changed.tokens[static_cast<std::size_t>(t)] += 150;
      const auto after = run_passes(runtime, lm, changed, d_hidden);
      const std::int64_t kept_begin = begin == 0 ? boundary : 0, kept_end = begin == 0 ? total : boundary;
      EXPECT_TRUE(same_bits(rows_of(before.hidden, hidden, kept_begin, kept_end),
                            rows_of(after.hidden, hidden, kept_begin, kept_end)));
      EXPECT_TRUE(same_bits(rows_of(before.embedding_gradient, hidden, kept_begin, kept_end),
                            rows_of(after.embedding_gradient, hidden, kept_begin, kept_end)));
      EXPECT_FALSE(same_bits(before.hidden, after.hidden));
    }
  }
}

TEST(HybridLm, ChunkedAndTokenByTokenRecurrencesAgree) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::tied);
  const DeviceDocuments d(runtime, Documents({0, 1, 20, 75}, config.vocab_size, 6));
  std::vector<std::vector<double>> gradients;
  std::vector<double> losses;
  for (const Implementation implementation : {Implementation::portable, Implementation::reference}) {
    SmallLm<double> lm(runtime, config, {16, implementation});
    losses.push_back(testing::loss_and_gradients(runtime, lm.model, d));
    gradients.push_back(host(runtime, lm.model.parameters().flat_gradients()));
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-11 * losses[1]);
  EXPECT_LE(testing::relative_error(gradients[0], gradients[1]), 1e-11);
}

TEST(HybridLm, MicroBatchesAddUp) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::tied);
  const Documents packed({0, 31, 75}, config.vocab_size, 7);
  SmallLm<double> lm(runtime, config);
  const double scale = 1.0 / 73.0;
  const double whole =
      testing::loss_and_gradients(runtime, lm.model, DeviceDocuments(runtime, packed), scale);
  const auto gradient = host(runtime, lm.model.parameters().flat_gradients());
  lm.model.parameters().zero_gradients(runtime);
  double sum = 0.0;
  for (const auto& [begin, end] : {std::pair<std::int32_t, std::int32_t>{0, 31}, {31, 75}}) {
    Documents part({0, end - begin}, config.vocab_size, 7);
    part.tokens.assign(packed.tokens.begin() + begin, packed.tokens.begin() + end);
    part.labels.assign(packed.labels.begin() + begin, packed.labels.begin() + end);
    sum += testing::loss_and_gradients(runtime, lm.model, DeviceDocuments(runtime, part), scale);
  }
  EXPECT_NEAR(sum, whole, 1e-12 * whole);
  EXPECT_LE(testing::relative_error(host(runtime, lm.model.parameters().flat_gradients()), gradient), 1e-12);
}

TEST(HybridLm, RepeatsToTheLastBit) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::tied);
  const DeviceDocuments d(runtime, Documents({0, 50, 51, 200}, config.vocab_size, 8));
  SmallLm<float> lm(runtime, config);
  std::vector<std::vector<float>> gradients;
  std::vector<double> losses;
  for (int i = 0; i < 2; ++i) {
    lm.model.parameters().zero_gradients(runtime);
    losses.push_back(testing::loss_and_gradients(runtime, lm.model, d, 0.01));
    gradients.push_back(host(runtime, lm.model.parameters().flat_gradients()));
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(same_bits(gradients[0], gradients[1]));
}

TEST(HybridLm, StepsEqualTheWholeSequence) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::untied);
  SmallLm<double> lm(runtime, config);
  const std::int32_t length = 21;
  const Documents both({0, length, 2 * length}, config.vocab_size, 9);
  SavedTensors saved;
  Context context{runtime, saved, Mode::evaluate};
  const DeviceDocuments d(runtime, both);
  const auto whole = host(runtime, lm.model.logits(context, d.tokens, d.sequences));
  auto state = lm.model.make_decode_state(runtime, 2, length);
  for (std::int32_t t = 0; t < length; ++t) {
    const std::vector<std::int32_t> pair{both.tokens[static_cast<std::size_t>(t)],
                                         both.tokens[static_cast<std::size_t>(length + t)]};
    const auto tokens = from_vector(runtime.compute(), runtime.arena(), "tokens", Shape{2}, pair);
    const auto logits = host(runtime, lm.model.step(runtime, tokens, state));
    auto want = rows_of(whole, config.vocab_size, t, t + 1);
    const auto second = rows_of(whole, config.vocab_size, length + t, length + t + 1);
    want.insert(want.end(), second.begin(), second.end());
    EXPECT_LE(testing::relative_error(logits, want), 1e-9) << "token " << t;
  }
  const auto one_more =
      from_vector(runtime.compute(), runtime.arena(), "tokens", Shape{2}, std::vector<std::int32_t>{0, 0});
  EXPECT_THROW(lm.model.step(runtime, one_more, state), ShapeError);
}

TYPED_TEST(HybridLmPacking, StartsFinite) {
  Runtime runtime;
  HybridLm<TypeParam> model(small_lm_config(Head::untied));
  model.parameters().allocate(runtime);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    model.parameters().initialize(runtime, seed);
    for (std::size_t i = 0; i < model.parameters().infos().size(); ++i)
      for (TypeParam value : host(runtime, model.parameters().value(static_cast<int>(i))))
        ASSERT_TRUE(std::isfinite(value)) << model.parameters().infos()[i].name;
  }
  const DeviceDocuments d(runtime, Documents({0, 40}, 13, 10));
  // Near the loss of a uniform guess over 13 tokens.
  EXPECT_NEAR(testing::loss_of(runtime, model, d) / 39.0, std::log(13.0), 0.1);
}

TEST(HybridLm, NamesParametersAsHuggingFaceDoes) {
  const HybridLm<float> model(small_lm_config(Head::untied));
  std::vector<std::string> names;
  for (const ParameterInfo& info : model.parameters().infos()) {
    names.push_back(info.name);
    EXPECT_EQ(info.decay, info.shape.rank() == 2) << info.name;
  }
  const auto has = [&](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const char* name :
       {"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.linear_attn.A_log", "model.layers.1.linear_attn.in_proj_f.weight",
        "model.layers.1.post_attention_layernorm.weight", "model.layers.2.self_attn.q_norm.weight",
        "model.layers.2.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"})
    EXPECT_TRUE(has(name)) << name;
}

TEST(HybridLm, RejectsWrongCalls) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::tied);
  HybridLm<float> bare(config);
  SavedTensors saved;
  Context train{runtime, saved}, evaluate{runtime, saved, Mode::evaluate};
  const DeviceDocuments d(runtime, Documents({0, 8}, config.vocab_size, 11));
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  EXPECT_THROW(bare.evaluate(evaluate, d.tokens, d.labels, d.sequences, loss), Error);  // no memory yet
  SmallLm<float> lm(runtime, config);
  EXPECT_THROW(lm.model.evaluate(train, d.tokens, d.labels, d.sequences, loss), Error);
  EXPECT_THROW(lm.model.forward_backward(evaluate, d.tokens, d.labels, d.sequences, 1.0, loss), Error);
  EXPECT_THROW(lm.model.evaluate(evaluate, d.tokens.rows(0, 7), d.labels, d.sequences, loss), ShapeError);
  EXPECT_THROW(lm.model.evaluate(evaluate, d.tokens, d.labels.rows(0, 7), d.sequences, loss), ShapeError);
  lm.model.hidden(train, d.tokens, d.sequences);
  EXPECT_THROW(lm.model.forward_backward(train, d.tokens, d.labels, d.sequences, 1.0, loss), Error);
  saved.clear();
  ModelConfig odd = config;
  odd.linear.num_value_heads = 3;
  EXPECT_THROW(HybridLm<float>{odd}, ConfigError);
  odd = config;
  odd.linear.conv_kernel = 5;
  EXPECT_THROW(HybridLm<float>{odd}, ConfigError);
}

}  // namespace
}  // namespace deltaport
