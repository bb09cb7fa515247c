// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/parameters.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace deltaport {
namespace {

constexpr Initializer gaussian{Initializer::Kind::normal, 0.02, 0.0};

template <class T>
int declare_block(ParameterSet<T>& set) {
  return set.declare_fused(
      {{"a.weight", Shape{3, 5}, 0, true, gaussian}, {"b.weight", Shape{2, 5}, 0, true, gaussian}});
}

TEST(ParameterSet, AlignsParametersButNotFusedMembers) {
  Runtime runtime;
  ParameterSet<float> set;
  set.declare("norm", Shape{5}, false, {Initializer::Kind::ones});
  const int block = declare_block(set);
  set.declare("tail", Shape{1}, false, {Initializer::Kind::zeros});
  set.allocate(runtime);
  EXPECT_EQ(set.infos()[static_cast<std::size_t>(block)].offset, 64);
  EXPECT_EQ(set.infos()[static_cast<std::size_t>(block) + 1].offset, 64 + 15);
  EXPECT_EQ(set.infos().back().offset, 128);
  EXPECT_EQ(set.flat_size(), 192);
  EXPECT_EQ(set.count(), 5 + 25 + 1);
}

TEST(ParameterSet, PaddingIsZeroAndValuesDependOnNamesOnly) {
  Runtime runtime;
  ParameterSet<double> first;
  const int a = declare_block(first);
  first.allocate(runtime);
  first.initialize(runtime, 7);
  const auto flat = to_vector(runtime.compute(), first.flat_values());
  for (std::size_t i = 25; i < flat.size(); ++i) EXPECT_EQ(flat[i], 0.0);

  ParameterSet<double> second;
  second.declare("something else", Shape{100}, false, gaussian);
  const int b = declare_block(second);
  second.allocate(runtime);
  second.initialize(runtime, 7);
  EXPECT_EQ(to_vector(runtime.compute(), first.value(a + 1)),
            to_vector(runtime.compute(), second.value(b + 1)));
  second.initialize(runtime, 8);
  EXPECT_NE(to_vector(runtime.compute(), first.value(a + 1)),
            to_vector(runtime.compute(), second.value(b + 1)));
}

TEST(ParameterSet, InitializersGiveTheirDistributions) {
  Runtime runtime;
  ParameterSet<double> set;
  constexpr std::int64_t n = 20000;
  set.declare("normal", Shape{n}, false, gaussian);
  set.declare("log", Shape{n}, false, {Initializer::Kind::log_uniform, 0.01, 16.0});
  set.declare("dt", Shape{n}, false, {Initializer::Kind::inverse_softplus_log_uniform, 0.001, 0.1});
  set.allocate(runtime);
  set.initialize(runtime, 1);
  double square = 0.0, mean_a = 0.0;
  for (double x : to_vector(runtime.compute(), set.value(0))) square += x * x;
  EXPECT_NEAR(std::sqrt(square / n), 0.02, 0.0005);
  for (double x : to_vector(runtime.compute(), set.value(1))) {
    EXPECT_TRUE(std::exp(x) > 0.0099 && std::exp(x) < 16.0001);
    mean_a += std::exp(x) / n;
  }
  EXPECT_NEAR(mean_a, 8.0, 0.1);
  for (double x : to_vector(runtime.compute(), set.value(2))) {
    const double dt = std::log1p(std::exp(x));
    EXPECT_TRUE(dt > 0.00099 && dt < 0.1001) << dt;
  }
}

TEST(ParameterSet, RefusesMisuse) {
  Runtime runtime;
  ParameterSet<float> set;
  set.declare("a", Shape{2, 2}, true, gaussian);
  EXPECT_THROW(set.declare("a", Shape{1}, false, gaussian), Error);
  EXPECT_THROW(
      set.declare_fused({{"x", Shape{2, 3}, 0, true, gaussian}, {"y", Shape{2, 4}, 0, true, gaussian}}),
      Error);
  set.allocate(runtime);
  EXPECT_THROW(set.declare("late", Shape{1}, false, gaussian), Error);
  EXPECT_THROW(set.allocate(runtime), Error);
}

}  // namespace
}  // namespace deltaport
