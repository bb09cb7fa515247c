// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/sampling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

std::vector<double> shares(const std::vector<double>& logits, const SamplingOptions& options) {
  std::vector<double> share(logits.size());
  constexpr int draws = 20000;
  for (int i = 0; i < draws; ++i)
    share[static_cast<std::size_t>(sample_token(logits, options, 0, static_cast<std::uint64_t>(i)))] +=
        1.0 / draws;
  return share;
}

TEST(Sampling, FollowsTheSoftmax) {
  const auto share = shares({std::log(1.0), std::log(3.0), std::log(6.0)}, {});
  EXPECT_NEAR(share[0], 0.1, 0.01);
  EXPECT_NEAR(share[1], 0.3, 0.015);
  EXPECT_NEAR(share[2], 0.6, 0.015);
}

TEST(Sampling, TemperatureSharpensAndZeroIsGreedy) {
  const auto share = shares({0.0, std::log(2.0)}, {.temperature = 0.5});
  EXPECT_NEAR(share[1], 0.8, 0.015);
  EXPECT_EQ(sample_token({1.0, 5.0, 5.0}, {.temperature = 0.0}, 0, 0), 1);
}

TEST(Sampling, TopKAndTopPCutTheTail) {
  const std::vector<double> logits = {std::log(5.0), std::log(3.0), std::log(1.5), std::log(0.5)};
  EXPECT_EQ(shares(logits, {.top_k = 2})[2], 0.0);
  const auto nucleus = shares(logits, {.top_p = 0.7});
  EXPECT_EQ(nucleus[2], 0.0);
  EXPECT_NEAR(nucleus[0], 5.0 / 8.0, 0.015);
  EXPECT_NEAR(shares(logits, {.top_p = 0.01})[0], 1.0, 1e-9);
}

TEST(Sampling, DependsOnSeedSequenceAndPositionOnly) {
  const std::vector<double> logits(100, 0.0);
  const auto draw = [&](std::uint64_t seed, std::uint64_t sequence) {
    std::vector<std::int32_t> text;
    for (std::uint64_t i = 0; i < 20; ++i) text.push_back(sample_token(logits, {.seed = seed}, sequence, i));
    return text;
  };
  EXPECT_EQ(draw(1, 0), draw(1, 0));
  EXPECT_NE(draw(1, 0), draw(2, 0));
  EXPECT_NE(draw(1, 0), draw(1, 1));
}

TEST(Sampling, RejectsBadOptionsAndHopelessLogits) {
  EXPECT_THROW(sample_token({0.0}, {.temperature = -1.0}, 0, 0), ConfigError);
  EXPECT_THROW(sample_token({0.0}, {.top_k = -1}, 0, 0), ConfigError);
  EXPECT_THROW(sample_token({0.0}, {.top_p = 0.0}, 0, 0), ConfigError);
  EXPECT_THROW(sample_token({std::nan("")}, {}, 0, 0), NonFiniteError);
  EXPECT_EQ(sample_token({std::nan(""), 1.0, -std::numeric_limits<double>::infinity()}, {}, 0, 0), 1);
}

}  // namespace
}  // namespace deltaport
