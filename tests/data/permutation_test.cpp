// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/permutation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "deltaport/core/error.hpp"

namespace deltaport::test {
namespace {

std::vector<std::int64_t> image(const KeyedPermutation& permutation) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < permutation.size(); ++i) values.push_back(permutation(i));
  return values;
}

void expect_bijection(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<bool> seen(static_cast<std::size_t>(size), false);
  for (const std::int64_t value : image(KeyedPermutation(size, seed, epoch, 3))) {
    ASSERT_TRUE(value >= 0 && value < size) << size;
    ASSERT_FALSE(seen[static_cast<std::size_t>(value)]) << size;
    seen[static_cast<std::size_t>(value)] = true;
  }
}

TEST(KeyedPermutation, IsABijection) {
  for (std::int64_t size = 1; size <= 130; ++size)
    for (std::uint64_t seed = 0; seed < 3; ++seed) expect_bijection(size, seed, size % 4);
  for (const std::int64_t size : {255, 256, 257, 1023, 1024, 1025, 4095, 4097, 16385, 65536, 65537, 100003})
    expect_bijection(size, 1234, 1);
}

TEST(KeyedPermutation, DependsOnEachPartOfItsKey) {
  const auto base = image(KeyedPermutation(500, 1, 0, 9));
  EXPECT_EQ(image(KeyedPermutation(500, 1, 0, 9)), base);
  EXPECT_NE(image(KeyedPermutation(500, 2, 0, 9)), base);
  EXPECT_NE(image(KeyedPermutation(500, 1, 1, 9)), base);
  EXPECT_NE(image(KeyedPermutation(500, 1, 0, 8)), base);
}

// Pinned: a changed order would silently give every resumed run other samples.
TEST(KeyedPermutation, IsStable) {
  EXPECT_EQ(image(KeyedPermutation(10, 1234, 0, 0)),
            (std::vector<std::int64_t>{6, 5, 3, 9, 8, 2, 7, 4, 0, 1}));
}

TEST(KeyedPermutation, LooksRandom) {
  // Over many keys every element goes everywhere equally often: chi-squared with 81 degrees of freedom (a 10
  // x 10 table of permutations has (10 - 1)^2), mean 81, standard deviation 12.7.
  constexpr int size = 10;
  constexpr int keys = 5000;
  std::vector<double> counts(size * size, 0.0);
  std::set<std::vector<std::int64_t>> distinct;
  for (int key = 0; key < keys; ++key) {
    const auto values = image(KeyedPermutation(size, static_cast<std::uint64_t>(key), 0, 0));
    distinct.insert(values);
    for (std::size_t i = 0; i < size; ++i) counts[i * size + static_cast<std::size_t>(values[i])] += 1.0;
  }
  double chi_squared = 0.0;
  for (const double count : counts) chi_squared += std::pow(count - keys / 10.0, 2) / (keys / 10.0);
  EXPECT_LT(chi_squared, 81 + 5 * 12.7);
  EXPECT_GT(distinct.size(), 4900u);
}

TEST(KeyedPermutation, WorksAtTheLimitsAndRefusesBeyond) {
  const std::int64_t largest = std::int64_t{1} << 62;
  const KeyedPermutation permutation(largest, 1, 2, 3);
  EXPECT_NE(permutation(0), permutation(largest - 1));
  EXPECT_EQ(KeyedPermutation(1, 7, 7, 7)(0), 0);
  EXPECT_THROW(KeyedPermutation(0, 0, 0, 0), Error);
  EXPECT_THROW(KeyedPermutation(largest + 1, 0, 0, 0), Error);
  EXPECT_THROW(permutation(-1), Error);
  EXPECT_THROW(permutation(largest), Error);
}

}  // namespace
}  // namespace deltaport::test
