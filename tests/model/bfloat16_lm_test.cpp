// SPDX-License-Identifier: Apache-2.0
// The mixers and the whole model in bfloat16: against double, over micro-batches, and token by token.
#include "model/bfloat16.hpp"
#include "model/small_lm.hpp"

namespace deltaport {
namespace {
using namespace testing;
using recurrence::Implementation;

ModelConfig config_of(LayerType type, std::int64_t chunk_size = 64) {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 48;
  config.num_hidden_layers = 2;
  config.intermediate_size = 64;
  config.layer_pattern = {type};
  config.linear = {2, 4, 16, 24, 4, chunk_size};
  config.attention = {4, 2, 16, 0.5, 1e4};
  return config;
}

/// A bfloat16 model, and one in double with the very same numbers.
struct Both {
  Runtime runtime;
  HybridLm<bfloat16> half;
  HybridLm<double> exact;
  explicit Both(const ModelConfig& config, const LmOptions& options = {.loss_chunk_tokens = 32})
      : half(config, options), exact(config, options) {
    half.parameters().allocate(runtime);
    exact.parameters().allocate(runtime);
    half.parameters().initialize(runtime, 3);
    copy_parameters(runtime, half.parameters(), exact.parameters());
  }
};

double norm(const std::vector<double>& x) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares);
}

/// What errors of a gradient are relative to: its norm, except where it is a sum over tokens whose terms
/// cancel while their errors, which tokens share through the state, do not. So it is for dt_bias and A_log of
/// a GDN head, the sums of da and (within a factor of 2) da again. in_proj_a has the sum of da x, with x of
/// length sqrt(D) after its norm, and so tells the root of the sum of squares of da; by Cauchy-Schwarz the
/// sum of its absolute values is at most sqrt(T) times that.
double size_of_terms(const Both& models, const std::string& name, const std::vector<double>& gradient,
                     std::int64_t tokens) {
  const auto at = std::min(name.find(".A_log"), name.find(".dt_bias"));
  if (at == std::string::npos) return norm(gradient);
  const ParameterSet<double>& parameters = models.exact.parameters();
  for (std::size_t i = 0; i < parameters.infos().size(); ++i)
    if (parameters.infos()[i].name == name.substr(0, at) + ".in_proj_a.weight") {
      const auto of_a = to_vector(models.runtime.compute(), parameters.gradient(static_cast<int>(i)));
      const double hidden = static_cast<double>(models.exact.config().hidden_size);
      return 2 * norm(of_a) * std::sqrt(static_cast<double>(tokens) / hidden);
    }
  return norm(gradient);
}

class Bfloat16Lm : public ::testing::TestWithParam<std::pair<LayerType, Implementation>> {};

// The residual stream is rounded twice a layer, and every branch has about eight more roundings, each of at
// most half a unit of a part of it. With independent errors the squares add up: sqrt(2 layers * 10) half
// units, a bound for the norm of activations and of gradients alike; gradients pass forward's errors and
// their own.
TEST_P(Bfloat16Lm, LossAndGradientsFollowDouble) {
  const auto [type, implementation] = GetParam();
  Both models(config_of(type), {.loss_chunk_tokens = 32, .recurrence = implementation});
  const DeviceDocuments d(models.runtime, Documents({0, 1, 40, 160}, 61, 2));
  const double scale = 1.0 / 150;
  const double got = loss_and_gradients(models.runtime, models.half, d, scale);
  const double want = loss_and_gradients(models.runtime, models.exact, d, scale);
  EXPECT_NEAR(got, want, 5e-4 * want);
  EXPECT_NE(got, want);
  const double bound = 2 * std::sqrt(20.0) * half_unit;
  for (std::size_t i = 0; i < models.half.parameters().infos().size(); ++i) {
    const int index = static_cast<int>(i);
    const auto g = host(models.runtime, models.exact.parameters().gradient(index));
    const double error =
        norm_error(host(models.runtime, models.half.parameters().gradient(index)), g) * norm(g);
    const std::string& name = models.half.parameters().infos()[i].name;
    EXPECT_LE(error, bound * size_of_terms(models, name, g, d.tokens.size())) << name;
  }
}

TEST_P(Bfloat16Lm, StepsFollowTheWholeSequence) {
  const auto [type, implementation] = GetParam();
  Both models(config_of(type), {.loss_chunk_tokens = 32, .recurrence = implementation});
  const Documents documents({0, 20}, 61, 4);
  const DeviceDocuments d(models.runtime, documents);
  SavedTensors saved;
  Context context{models.runtime, saved, Mode::evaluate};
  const auto whole = host(models.runtime, models.exact.logits(context, d.tokens, d.sequences));
  auto state = models.half.make_decode_state(models.runtime, 1, 20);
  for (std::int64_t t = 0; t < 20; ++t) {
    const auto token = d.tokens.rows(t, t + 1);
    const auto logits = host(models.runtime, models.half.step(models.runtime, token, state));
    const std::vector<double> want(whole.begin() + t * 61, whole.begin() + (t + 1) * 61);
    EXPECT_LE(norm_error(logits, want), 2 * std::sqrt(20.0) * half_unit) << t;
  }
}

TEST_P(Bfloat16Lm, PrefillFollowsTheWholeSequence) {
  const auto [type, implementation] = GetParam();
  Both models(config_of(type), {.loss_chunk_tokens = 32, .recurrence = implementation});
  const Documents documents({0, 90}, 61, 4);
  const DeviceDocuments d(models.runtime, documents);
  SavedTensors saved;
  Context context{models.runtime, saved, Mode::evaluate};
  const auto whole = host(models.runtime, models.exact.logits(context, d.tokens, d.sequences));
  const std::vector<double> want(whole.begin() + 89 * 61, whole.end());
  for (const std::int64_t chunk : {1, 3, 40, 200}) {
    auto state = models.half.make_decode_state(models.runtime, 1, 90);
    const auto logits =
        host(models.runtime, models.half.prefill(models.runtime, {documents.tokens}, chunk, state));
    EXPECT_LE(norm_error(logits, want), 2 * std::sqrt(20.0) * half_unit) << chunk;
  }
}

std::vector<std::pair<LayerType, Implementation>> cases() {
  std::vector<std::pair<LayerType, Implementation>> all = {{LayerType::attention, Implementation::automatic}};
  for (const LayerType type : {LayerType::gdn, LayerType::gdn2})
    for (const auto implementation :
         {Implementation::automatic, Implementation::portable, Implementation::reference})
      all.push_back({type, implementation});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kinds, Bfloat16Lm, ::testing::ValuesIn(cases()), [](const auto& instance) {
  const LayerType type = instance.param.first;
  return std::string(type == LayerType::attention ? "attention"
                     : type == LayerType::gdn     ? "gdn"
                                                  : "gdn2") +
         "_" + std::string(recurrence::name_of(instance.param.second));
});

/// The gradients of every parameter, in float32.
std::vector<std::vector<float>> gradients(Runtime& runtime, const ParameterSet<bfloat16>& parameters) {
  std::vector<std::vector<float>> all;
  for (std::size_t i = 0; i < parameters.infos().size(); ++i)
    all.push_back(host(runtime, parameters.gradient(static_cast<int>(i))));
  return all;
}

// Gradients of micro-batches meet in float32, each added once as a whole: ((g1 + g2) + g3) to the last bit.
// The tied embedding alone has its tokens added one by one; it is equal to rounding. In bfloat16 the sum
// would be off by 2^-8 of itself.
TEST(Bfloat16Gradients, OfThreeMicroBatchesAreTheirFloat32Sum) {
  Runtime runtime;
  ModelConfig config = config_of(LayerType::gdn);
  config.num_hidden_layers = 3;
  config.layer_pattern = {LayerType::gdn, LayerType::gdn2, LayerType::attention};
  HybridLm<bfloat16> model(config, {.loss_chunk_tokens = 64});
  model.parameters().allocate(runtime);
  model.parameters().initialize(runtime, 3);
  std::vector<std::vector<float>> sum;
  std::vector<DeviceDocuments> batches;
  for (const std::uint64_t seed : {1, 2, 3}) batches.emplace_back(runtime, Documents({0, 33, 64}, 61, seed));
  for (const DeviceDocuments& batch : batches) {
    model.parameters().zero_gradients(runtime);
    loss_and_gradients(runtime, model, batch, 0.01);
    const auto one = gradients(runtime, model.parameters());
    if (sum.empty()) sum.assign(one.size(), {});
    for (std::size_t p = 0; p < one.size(); ++p) {
      sum[p].resize(one[p].size(), 0.0f);
      for (std::size_t i = 0; i < one[p].size(); ++i) sum[p][i] += one[p][i];
    }
  }
  model.parameters().zero_gradients(runtime);
  for (const DeviceDocuments& batch : batches) loss_and_gradients(runtime, model, batch, 0.01);
  const auto accumulated = gradients(runtime, model.parameters());
  for (std::size_t p = 0; p < sum.size(); ++p) {
    const std::string& name = model.parameters().infos()[p].name;
    if (name == "model.embed_tokens.weight")
      expect_unrounded(name, accumulated[p], widened(sum[p]), 1e-6);
    else
      EXPECT_EQ(accumulated[p], sum[p]) << name;
  }
}

TEST(Bfloat16Parameters, ExactOnesAreKeptInFloat32) {
  Runtime runtime;
  ModelConfig config = config_of(LayerType::gdn);
  config.layer_pattern = {LayerType::gdn, LayerType::gdn2};
  HybridLm<bfloat16> model(config);
  HybridLm<float> single(config);
  ParameterSet<bfloat16>& parameters = model.parameters();
  parameters.allocate(runtime);
  single.parameters().allocate(runtime);
  parameters.initialize(runtime, 9);
  single.parameters().initialize(runtime, 9);
  std::set<std::string> exact;
  for (std::size_t i = 0; i < parameters.infos().size(); ++i) {
    const ParameterInfo& info = parameters.infos()[i];
    const int index = static_cast<int>(i);
    const auto masters = host(runtime, parameters.master(index));
    EXPECT_EQ(masters, host(runtime, single.parameters().value(index))) << info.name;
    if (info.kept == Kept::exact) {
      exact.insert(info.name);
      EXPECT_THROW(parameters.value(index), Error);
      continue;
    }
    const auto values = host(runtime, parameters.value(index));
    for (std::size_t e = 0; e < values.size(); ++e) ASSERT_EQ(values[e].bits, bfloat16(masters[e]).bits);
  }
  std::set<std::string> expected;
  for (const char* layer : {"model.layers.0.linear_attn.", "model.layers.1.linear_attn."})
    for (const char* name : {"A_log", "dt_bias", "norm.weight"}) expected.insert(concat(layer, name));
  EXPECT_EQ(exact, expected);
  EXPECT_EQ(parameters.flat_values().size(), parameters.flat_size(Kept::rounded));
  EXPECT_EQ(parameters.flat_size(), single.parameters().flat_size());
}

TEST(Bfloat16Parameters, InferenceTakesWhatForwardReads) {
  Runtime runtime;
  HybridLm<bfloat16> model(config_of(LayerType::gdn));
  ParameterSet<bfloat16>& parameters = model.parameters();
  const std::size_t before = runtime.arena().stats().allocated;  // a BLAS may have its workspace there
  parameters.allocate(runtime, Purpose::inference);
  const auto expected = 2 * parameters.flat_size(Kept::rounded) + 4 * parameters.flat_size(Kept::exact);
  EXPECT_NEAR(static_cast<double>(runtime.arena().stats().allocated - before), static_cast<double>(expected),
              512);
  EXPECT_THROW(parameters.gradient(0), Error);
  EXPECT_THROW(parameters.master(0), Error);
  EXPECT_THROW(parameters.initialize(runtime, 1), Error);
}

}  // namespace
}  // namespace deltaport
