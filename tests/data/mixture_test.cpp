// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/mixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "data/scratch.hpp"

namespace deltaport::test {
namespace {

TEST(Mixture, SharesAreExactOverACycle) {
  const std::vector<double> weights = {0.7, 0.2, 0.1};
  const Mixture mixture(weights);
  EXPECT_EQ(mixture.quota(0) + mixture.quota(1) + mixture.quota(2), Mixture::cycle);
  for (std::size_t s = 0; s < 3; ++s)
    EXPECT_NEAR(static_cast<double>(mixture.quota(static_cast<std::int64_t>(s))), weights[s] * 1024, 1.0);
  for (const std::int64_t begin : {0, 1, 500, 1024}) {  // any stretch of one cycle's length
    std::vector<std::int64_t> drawn(3, 0);
    for (std::int64_t n = begin; n < begin + Mixture::cycle; ++n)
      ++drawn[static_cast<std::size_t>(mixture.draw(n).source)];
    for (std::int64_t s = 0; s < 3; ++s) EXPECT_EQ(drawn[static_cast<std::size_t>(s)], mixture.quota(s));
  }
}

TEST(Mixture, IsSpreadEvenly) {
  const std::vector<double> weights = {5, 3, 1, 1};
  const Mixture mixture(weights);
  std::vector<double> drawn(4, 0.0);
  for (std::int64_t n = 0; n < 4096; ++n) {
    drawn[static_cast<std::size_t>(mixture.draw(n).source)] += 1.0;
    for (std::size_t s = 0; s < 4; ++s) {
      const double share = static_cast<double>(mixture.quota(static_cast<std::int64_t>(s))) / 1024.0;
      ASSERT_LT(std::abs(drawn[s] - share * static_cast<double>(n + 1)), 2.0) << n;
    }
  }
}

TEST(Mixture, IndicesOfASourceCountUpWithoutGaps) {
  const Mixture mixture({1, 2, 10});
  std::vector<std::int64_t> next(3, 0);
  for (std::int64_t n = 0; n < 5000; ++n) {
    const Mixture::Draw draw = mixture.draw(n);
    ASSERT_EQ(draw.index, next[static_cast<std::size_t>(draw.source)]++);
  }
}

TEST(Mixture, OneSourceIsTheIdentity) {
  const Mixture mixture({3.5});
  for (const std::int64_t n :
       {std::int64_t{0}, std::int64_t{5}, std::int64_t{1024}, std::int64_t{123456789012}}) {
    EXPECT_EQ(mixture.draw(n).source, 0);
    EXPECT_EQ(mixture.draw(n).index, n);
  }
}

TEST(Mixture, OnlyTheRatioOfWeightsMatters) {
  const Mixture small({1e-300, 3e-300});
  const Mixture large({1e308, 1.5e308});  // the sum overflows
  EXPECT_EQ(small.quota(0), 256);
  EXPECT_EQ(small.quota(1), 768);
  EXPECT_NEAR(static_cast<double>(large.quota(0)), 1024 / 2.5, 1.0);
}

TEST(Mixture, RefusesUnusableWeights) {
  EXPECT_THROW(Mixture({}), ConfigError);
  EXPECT_THROW(Mixture({1.0, 0.0}), ConfigError);
  EXPECT_THROW(Mixture({1.0, -1.0}), ConfigError);
  EXPECT_THROW(Mixture({std::nan("")}), ConfigError);
  EXPECT_THROW(Mixture({std::numeric_limits<double>::infinity()}), ConfigError);
  const std::string error = error_of<ConfigError>([] { Mixture({1.0, 1e-5}); });
  EXPECT_TRUE(contains(error, "never be drawn")) << error;
  EXPECT_THROW(Mixture(std::vector<double>(1025, 1.0)), ConfigError);
  EXPECT_EQ(Mixture(std::vector<double>(1024, 1.0)).quota(1023), 1);
}

}  // namespace
}  // namespace deltaport::test
