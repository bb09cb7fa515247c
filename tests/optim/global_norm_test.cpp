// SPDX-License-Identifier: Apache-2.0
#include "deltaport/optim/global_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "optim/threads.hpp"

namespace deltaport {
namespace {

template <class T>
std::vector<T> draws(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.0, 3.0);
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& value : x) value = static_cast<T>(normal(random));
  return x;
}

template <class T>
double norm_of(const std::vector<T>& x) {
  Runtime runtime;
  const Tensor<T> device =
      from_vector(runtime.compute(), runtime.arena(), "x", Shape{static_cast<std::int64_t>(x.size())}, x);
  return to_vector(runtime.compute(), global_norm(runtime, device))[0];
}

template <class T>
class GlobalNorm : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GlobalNorm, Types);

TYPED_TEST(GlobalNorm, AgreesWithALongDoubleSum) {
  for (const std::int64_t n : {1, 7, 64, 65, 1000, 65536, 65537, 300001}) {
    const auto x = draws<TypeParam>(n, static_cast<unsigned>(n));
    long double sum = 0;
    for (const TypeParam value : x) sum += static_cast<long double>(value) * value;
    const double expected = static_cast<double>(std::sqrt(sum));
    EXPECT_NEAR(norm_of(x), expected, 1e-14 * expected) << n;
  }
}

TYPED_TEST(GlobalNorm, DISABLED_PrintBits) {
  test::print_bits(test::hash_bits<double>({norm_of(draws<TypeParam>(123457, 3))}));
}

TYPED_TEST(GlobalNorm, SameBitsFromRunToRun) {
  const auto x = draws<TypeParam>(123457, 3);
  EXPECT_EQ(norm_of(x), norm_of(x));
}

TYPED_TEST(GlobalNorm, LargeValuesDoNotOverflowAndNonFiniteOnesShow) {
  std::vector<TypeParam> x(100, TypeParam(0));
  EXPECT_EQ(norm_of(x), 0.0);
  x[99] = static_cast<TypeParam>(std::numeric_limits<float>::max());
  EXPECT_EQ(norm_of(x), static_cast<double>(x[99]));
  x[5] = std::numeric_limits<TypeParam>::infinity();
  EXPECT_TRUE(std::isinf(norm_of(x)));
  x[70] = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_TRUE(std::isnan(norm_of(x)));
}

TEST(GlobalNormThreads, SameBitsForAnyThreadCount) {
  const std::string one = test::bits_with_threads(1, "GlobalNorm/*.DISABLED_PrintBits");
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(test::bits_with_threads(2, "GlobalNorm/*.DISABLED_PrintBits"), one);
  EXPECT_EQ(test::bits_with_threads(3, "GlobalNorm/*.DISABLED_PrintBits"), one);
}

TEST(GlobalNormArguments, EmptyAndUndefined) {
  Runtime runtime;
  EXPECT_THROW(global_norm(runtime, Tensor<float>()), ShapeError);
  EXPECT_EQ(norm_of(std::vector<float>{}), 0.0);
}

}  // namespace
}  // namespace deltaport
