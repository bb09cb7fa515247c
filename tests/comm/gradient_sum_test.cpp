// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "deltaport/comm/communicator.hpp"

namespace deltaport {
namespace {

/// Values whose sum depends on the order of additions.
template <class T>
T awkward(int rank, std::int64_t i) {
  return static_cast<T>(
      std::ldexp(std::cos(static_cast<double>(i) + 2.3 * rank), static_cast<int>((i * 5 + rank * 11) % 30)));
}

template <class T>
std::vector<T> values_of(int rank, std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = awkward<T>(rank, i);
  return values;
}

template <class T>
std::vector<T> sum_in_rank_order(int ranks, std::int64_t n) {
  std::vector<T> sum = values_of<T>(0, n);
  for (int r = 1; r < ranks; ++r)
    for (std::int64_t i = 0; i < n; ++i) sum[static_cast<std::size_t>(i)] += awkward<T>(r, i);
  return sum;
}

template <class T>
std::vector<T> summed(Runtime& runtime, const Communicator& world, std::int64_t n) {
  const auto x = from_vector(runtime.compute(), runtime.arena(), "x", {n}, values_of<T>(world.rank(), n));
  world.sum_gradients(runtime, x);
  return to_vector(runtime.compute(), x);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
class GradientSum : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GradientSum, Types);

TYPED_TEST(GradientSum, EqualsTheSerialSumToTheLastBit) {
  Runtime runtime;
  Communicator world = Communicator::world();
  for (const Staging staging : {Staging::automatic, Staging::always})
    for (const std::int64_t bucket : {1, 7, 1024, 1 << 20})
      for (const std::int64_t n : {0, 1, 2, 5, 1000, 4099}) {
        if (n / bucket > 1000) continue;
        world.set_staging(staging);
        world.set_bucket_elements(bucket);
        EXPECT_TRUE(
            same_bits(summed<TypeParam>(runtime, world, n), sum_in_rank_order<TypeParam>(world.size(), n)))
            << "n=" << n << " bucket=" << bucket;
      }
}

TYPED_TEST(GradientSum, LargeBufferInDefaultBuckets) {
  Runtime runtime;
  const Communicator world = Communicator::world();
  const std::int64_t n = (std::int64_t{1} << 22) + 12345;
  EXPECT_TRUE(same_bits(summed<TypeParam>(runtime, world, n), sum_in_rank_order<TypeParam>(world.size(), n)));
}

TYPED_TEST(GradientSum, KeepsNaNAndInfinity) {
  Runtime runtime;
  const Communicator world = Communicator::world();
  std::vector<TypeParam> values(10, TypeParam(1));
  if (world.rank() == world.size() - 1) values[3] = std::numeric_limits<TypeParam>::quiet_NaN();
  if (world.rank() == 0) values[9] = std::numeric_limits<TypeParam>::infinity();
  const auto x = from_vector(runtime.compute(), runtime.arena(), "x", {10}, values);
  world.sum_gradients(runtime, x);
  const auto sums = to_vector(runtime.compute(), x);
  EXPECT_TRUE(std::isnan(sums[3]));
  EXPECT_TRUE(std::isinf(sums[9]));
  EXPECT_EQ(sums[0], TypeParam(world.size()));
}

TEST(GradientSumMemory, TakesNothingFromTheDriverAfterTheFirstCall) {
  Runtime runtime;
  Communicator world = Communicator::world();
  world.set_bucket_elements(1000);
  const auto x = runtime.allocate_zero<float>("x", {4500});
  world.sum_gradients(runtime, x);
  const ArenaStats before = runtime.arena().stats();
  for (int i = 0; i < 3; ++i) world.sum_gradients(runtime, x);
  const ArenaStats after = runtime.arena().stats();
  EXPECT_EQ(after.slab_requests, before.slab_requests);
  EXPECT_EQ(after.allocated, before.allocated);
}

TEST(GradientSumMemory, StagedBuffersMayOutliveTheRuntime) {
  Communicator world = Communicator::world();
  world.set_staging(Staging::always);
  for (int i = 0; i < 2; ++i) {
    Runtime runtime;
    const auto x = runtime.allocate_zero<double>("x", {100 + 1000 * i});  // the second call needs more room
    world.sum_gradients(runtime, x);
  }
}

TEST(GradientSumArguments, BucketMustBePositive) {
  Communicator world = Communicator::world();
  EXPECT_THROW(world.set_bucket_elements(0), CommError);
  EXPECT_THROW(world.set_bucket_elements(std::int64_t{1} << 40), CommError);
}

}  // namespace
}  // namespace deltaport
