// SPDX-License-Identifier: Apache-2.0
// The whole model in float64 against fourth-order central differences of its loss. Steps are small because
// the norm of a short query or key bends sharply.
#include "model/small_lm.hpp"

namespace deltaport {
namespace {

using testing::Head;
using testing::host;

struct GradientSetting {
  const char* name;
  Head head;
  std::int64_t value_heads;
  std::vector<std::int32_t> cu_seqlens;
  recurrence::Implementation implementation;
};

class HybridLmGradient : public ::testing::TestWithParam<GradientSetting> {
 protected:
  // (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h along `direction` (one value per flat element).
  double derivative(testing::SmallLm<double>& lm, const testing::DeviceDocuments& d,
                    const std::vector<double>& direction, double h) {
    const Tensor<double>& values = lm.model.parameters().flat_values();
    const std::vector<double> original = host(runtime_, values);
    const auto at = [&](double offset) {
      std::vector<double> shifted = original;
      for (std::size_t i = 0; i < shifted.size(); ++i) shifted[i] += offset * direction[i];
      copy_from_host(runtime_.compute(), values, shifted.data());
      return testing::loss_of(runtime_, lm.model, d);
    };
    const double result = (8.0 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12.0 * h);
    copy_from_host(runtime_.compute(), values, original.data());
    return result;
  }
  Runtime runtime_;
};

TEST_P(HybridLmGradient, MatchesCentralDifferences) {
  const GradientSetting& setting = GetParam();
  const ModelConfig config = testing::small_lm_config(setting.head, setting.value_heads);
  testing::SmallLm<double> lm(runtime_, config, {7, setting.implementation});
  const testing::DeviceDocuments d(runtime_, testing::Documents(setting.cu_seqlens, config.vocab_size, 3));
  ParameterSet<double>& parameters = lm.model.parameters();
  const double forward_loss = testing::loss_of(runtime_, lm.model, d);
  const double loss = testing::loss_and_gradients(runtime_, lm.model, d);
  EXPECT_DOUBLE_EQ(loss, forward_loss);
  const std::vector<double> gradient = host(runtime_, parameters.flat_gradients());

  // Along random directions, all parameters at once.
  for (std::uint64_t seed = 10; seed < 12; ++seed) {
    std::vector<double> direction(gradient.size(), 0.0);
    double expected = 0.0, magnitude = 0.0;
    for (const ParameterInfo& info : parameters.infos())
      for (std::int64_t i = info.offset; i < info.offset + info.shape.size(); ++i) {
        const auto index = static_cast<std::size_t>(i);
        direction[index] = normal(seed, 23, static_cast<std::uint64_t>(i));
        expected += gradient[index] * direction[index];
        magnitude += std::pow(gradient[index], 2);
      }
    EXPECT_NEAR(derivative(lm, d, direction, 1e-6), expected, 1e-7 * std::sqrt(magnitude));
  }

  // Single elements of every parameter, the one with the largest gradient among them. Differences of the loss
  // are good to about 1e-10, so gradients below 0.01 are held to 1e-9.
  for (const ParameterInfo& info : parameters.infos()) {
    const auto begin = gradient.begin() + info.offset, end = begin + info.shape.size();
    const auto largest =
        std::max_element(begin, end, [](double a, double b) { return std::abs(a) < std::abs(b); });
    for (std::int64_t element : {info.shape.size() / 2, std::int64_t{largest - begin}}) {
      std::vector<double> direction(gradient.size(), 0.0);
      direction[static_cast<std::size_t>(info.offset + element)] = 1.0;
      const double numeric = derivative(lm, d, direction, 1e-5);
      EXPECT_NEAR(numeric, begin[element], 1e-7 * std::max(std::abs(*largest), 0.01))
          << info.name << " " << element;
    }
  }
}

using recurrence::Implementation;
INSTANTIATE_TEST_SUITE_P(
    Settings, HybridLmGradient,
    ::testing::Values(GradientSetting{"tied", Head::tied, 4, {0, 3, 4, 22}, Implementation::portable},
                      GradientSetting{
                          "untied_reference", Head::untied, 4, {0, 20}, Implementation::reference},
                      GradientSetting{"one_group", Head::untied, 2, {0, 18, 19}, Implementation::portable},
                      GradientSetting{"one_token", Head::tied, 4, {0, 1}, Implementation::portable},
                      GradientSetting{"two_tokens", Head::untied, 4, {0, 2}, Implementation::portable}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(HybridLm, PaddingGradientsStayZero) {
  Runtime runtime;
  const ModelConfig config = testing::small_lm_config(Head::untied);
  testing::SmallLm<double> lm(runtime, config);
  const testing::DeviceDocuments d(runtime, testing::Documents({0, 20}, config.vocab_size, 3));
  testing::loss_and_gradients(runtime, lm.model, d);
  std::vector<double> gradient = host(runtime, lm.model.parameters().flat_gradients());
  for (const ParameterInfo& info : lm.model.parameters().infos()) {
    const auto begin = gradient.begin() + info.offset;
    EXPECT_TRUE(std::any_of(begin, begin + info.shape.size(), [](double g) { return g != 0.0; }))
        << info.name;
    std::fill(begin, begin + info.shape.size(), 0.0);
  }
  for (double padding : gradient) EXPECT_EQ(padding, 0.0);
}

}  // namespace
}  // namespace deltaport
