// SPDX-License-Identifier: Apache-2.0
#include "train/first_difference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deltaport/core/runtime.hpp"

namespace deltaport::train {
namespace {

template <class T>
class FirstDifference : public ::testing::Test {
 protected:
  std::int64_t of(const std::vector<T>& a, const std::vector<T>& b) {
    const auto on_device = [&](const std::vector<T>& x) {
      return from_vector(runtime.compute(), runtime.arena(), "x", Shape{static_cast<std::int64_t>(x.size())},
                         x);
    };
    return first_difference(runtime.compute(), on_device(a), on_device(b));
  }
  Runtime runtime;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(FirstDifference, Types);

TYPED_TEST(FirstDifference, FindsTheFirstOfSeveral) {
  std::vector<TypeParam> a(100000, TypeParam(1)), b = a;
  EXPECT_EQ(this->of(a, b), -1);
  b[99999] = TypeParam(2);
  EXPECT_EQ(this->of(a, b), 99999);
  b[70001] = TypeParam(2);
  EXPECT_EQ(this->of(a, b), 70001);
  b[0] = std::nextafter(TypeParam(1), TypeParam(2));
  EXPECT_EQ(this->of(a, b), 0);
  EXPECT_EQ(this->of({}, {}), -1);
}

TYPED_TEST(FirstDifference, ComparesBitsNotValues) {
  constexpr TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_EQ(this->of({1, nan}, {1, nan}), -1);
  EXPECT_EQ(this->of({1, TypeParam(0)}, {1, -TypeParam(0)}), 1);
  EXPECT_EQ(this->of({nan}, {-nan}), 0);
}

TYPED_TEST(FirstDifference, RefusesOtherSizes) {
  EXPECT_THROW(this->of({1, 2}, {1}), ShapeError);
}

}  // namespace
}  // namespace deltaport::train
