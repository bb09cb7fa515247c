// SPDX-License-Identifier: Apache-2.0
// The devices' kernel for rows of logits, run on hosts with one thread for each of a block's, against double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "model/cross_entropy_packs.hpp"
#include "model/gradient_check.hpp"
#include "model/lane_team.hpp"

namespace deltaport {
namespace {

using testing::run_blocks;
constexpr int block = 8;  // threads; a run is 128 elements

struct Row {
  double loss;
  std::vector<double> gradient;
};

Row expected(const std::vector<float>& x, std::int64_t begin, std::int64_t vocab, std::int32_t label,
             double scale) {
  Row row{0.0, std::vector<double>(static_cast<std::size_t>(vocab))};
  if (label == ignored_label) return row;
  double top = -std::numeric_limits<double>::infinity(), sum = 0.0;
  const auto at = [&](std::int64_t i) { return static_cast<double>(x[static_cast<std::size_t>(begin + i)]); };
  for (std::int64_t i = 0; i < vocab; ++i) top = std::max(top, at(i));
  for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(at(i) - top);
  row.loss = std::log(sum) + top - at(label);
  for (std::int64_t i = 0; i < vocab; ++i)
    row.gradient[static_cast<std::size_t>(i)] =
        scale * (std::exp(at(i) - top) / sum - (i == label ? 1.0 : 0.0));
  return row;
}

/// Element i of a row's gradient, which is T at the start of the row of floats.
template <class T>
double gradient_at(const std::vector<float>& logits, std::int64_t begin, std::int64_t i) {
  T value;
  std::memcpy(
      &value,
      reinterpret_cast<const std::byte*>(logits.data() + begin) + i * static_cast<std::int64_t>(sizeof(T)),
      sizeof(T));
  return static_cast<double>(static_cast<float>(value));
}

template <class T>
void check(std::int64_t vocab, double tolerance) {
  const std::vector<std::int32_t> labels = {0, static_cast<std::int32_t>(vocab - 1), ignored_label, 2};
  const auto rows = static_cast<std::int64_t>(labels.size());
  auto logits = testing::random_values<float>(rows * vocab, 7);
  for (float& x : logits) x *= 8.0f;
  logits[1] = 90.0f;                                                                  // dominates
  logits[static_cast<std::size_t>(vocab)] = -std::numeric_limits<float>::infinity();  // a masked entry
  const auto before = logits;
  std::vector<double> losses(static_cast<std::size_t>(rows), -1.0);
  const double scale = 0.25;
  run_blocks(rows, block, PackedCrossEntropy<T>{vocab, nullptr, labels.data(), logits.data(), losses.data()});
  ASSERT_EQ(logits, before);
  const auto losses_alone = losses;
  run_blocks(rows, block, PackedCrossEntropy<T>{vocab, &scale, labels.data(), logits.data(), losses.data()});
  EXPECT_EQ(losses, losses_alone);
  for (std::int64_t r = 0; r < rows; ++r) {
    const Row want = expected(before, r * vocab, vocab, labels[static_cast<std::size_t>(r)], scale);
    EXPECT_NEAR(losses[static_cast<std::size_t>(r)], want.loss, 1e-5 * (1.0 + std::abs(want.loss))) << r;
    for (std::int64_t i = 0; i < vocab; ++i) {
      const double g = want.gradient[static_cast<std::size_t>(i)];
      ASSERT_NEAR(gradient_at<T>(logits, r * vocab, i), g, tolerance * (1e-3 + std::abs(g))) << r << " " << i;
    }
  }
}

TEST(CrossEntropyPacks, LossAndGradientInPlace) {
  for (const std::int64_t vocab : {4, 32, 128, 132, 256, 1000}) {
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
