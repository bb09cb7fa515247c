// SPDX-License-Identifier: Apache-2.0
// The devices' kernel for rows of logits, run on hosts with one thread for each of a block's, against double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/cross_entropy_packs.hpp"
#include "model/gradient_check.hpp"
#include "model/lane_team.hpp"

namespace deltaport {
namespace {

using testing::run_blocks;
constexpr int block = 8;  // threads

struct Row {
  double loss;
  std::vector<double> gradient;
};

template <class T>
Row expected(const std::vector<T>& x, std::int64_t begin, std::int64_t vocab, std::int32_t label,
             double scale) {
  Row row{0.0, std::vector<double>(static_cast<std::size_t>(vocab))};
  if (label == ignored_label) return row;
  double top = -std::numeric_limits<double>::infinity(), sum = 0.0;
  const auto at = [&](std::int64_t i) {
    return static_cast<double>(widen(x[static_cast<std::size_t>(begin + i)]));
  };
  for (std::int64_t i = 0; i < vocab; ++i) top = std::max(top, at(i));
  for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(at(i) - top);
  row.loss = std::log(sum) + top - at(label);
  for (std::int64_t i = 0; i < vocab; ++i)
    row.gradient[static_cast<std::size_t>(i)] =
        scale * (std::exp(at(i) - top) / sum - (i == label ? 1.0 : 0.0));
  return row;
}

template <class T>
void check(std::int64_t vocab, double tolerance) {
  const std::vector<std::int32_t> labels = {0, static_cast<std::int32_t>(vocab - 1), ignored_label, 2};
  const auto rows = static_cast<std::int64_t>(labels.size());
  std::vector<T> logits;
  for (const float x : testing::random_values<float>(rows * vocab, 7))
    logits.push_back(static_cast<T>(8.0f * x));
  logits[1] = static_cast<T>(90.0f);  // dominates
  logits[static_cast<std::size_t>(vocab)] =
      static_cast<T>(-std::numeric_limits<float>::infinity());  // masked
  const auto before = logits;
  std::vector<double> losses(static_cast<std::size_t>(rows), -1.0);
  const double scale = 0.25;
  run_blocks(rows, block, PackedCrossEntropy<T>{vocab, nullptr, labels.data(), logits.data(), losses.data()});
  ASSERT_TRUE(testing::same_bits(logits, before));
  const auto losses_alone = losses;
  run_blocks(rows, block, PackedCrossEntropy<T>{vocab, &scale, labels.data(), logits.data(), losses.data()});
  EXPECT_EQ(losses, losses_alone);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Row want = expected(before, r * vocab, vocab, labels[static_cast<std::size_t>(r)], scale);
    EXPECT_NEAR(losses[static_cast<std::size_t>(r)], want.loss, 1e-5 * (1.0 + std::abs(want.loss))) << r;
    for (std::int64_t i = 0; i < vocab; ++i) {
      const double g = want.gradient[static_cast<std::size_t>(i)];
      ASSERT_NEAR(static_cast<double>(widen(logits[static_cast<std::size_t>(r * vocab + i)])), g,
                  tolerance * (1e-3 + std::abs(g)))
          << r << " " << i;
    }
  }
}

TEST(CrossEntropyPacks, LossAndGradientInPlace) {
  for (const std::int64_t vocab : {8, 32, 128, 136, 256, 1000}) {
    check<float>(vocab, 2e-5);
    check<bfloat16>(vocab, 1.0 / 256);
  }
}

TEST(CrossEntropyPacks, WrongLabelsAndNaNShow) {
  constexpr std::int64_t vocab = 64;
  const std::vector<std::int32_t> labels = {-1, vocab, 3};
  std::vector<float> logits(3 * vocab, 1.0f);
  logits[2 * vocab + 17] = std::numeric_limits<float>::quiet_NaN();
  std::vector<double> losses(3, 0.0);
  const double scale = 1.0;
  run_blocks(3, block, PackedCrossEntropy<float>{vocab, &scale, labels.data(), logits.data(), losses.data()});
  for (const double loss : losses) EXPECT_TRUE(std::isnan(loss));
  // A label that is no index takes nothing away from the softmax.
  for (std::int64_t i = 0; i < 2 * vocab; ++i)
    EXPECT_NEAR(logits[static_cast<std::size_t>(i)], 1.0 / vocab, 1e-6);
}

}  // namespace
}  // namespace deltaport
