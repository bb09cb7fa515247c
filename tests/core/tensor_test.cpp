// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "deltaport/core/context.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport {
namespace {

struct Doubling {
  TensorView<float, 2> x;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    for (std::size_t j = 0; j < x.extent(1); ++j) x(static_cast<std::size_t>(i), j) *= 2.0f;
  }
};

TEST(Tensor, RowsAndReshapeShareMemory) {
  Runtime runtime;
  auto x = from_vector<float>(runtime.compute(), runtime.arena(), "x", Shape{3, 2}, {1, 2, 3, 4, 5, 6});
  for_each_index(runtime.compute(), "double", 2, Doubling{x.rows(1, 3).view<2>()});
  EXPECT_EQ(to_vector(runtime.compute(), x.reshape(Shape{6})), (std::vector<float>{1, 2, 6, 8, 10, 12}));
  EXPECT_EQ(x.rows(1, 3).storage(), x.storage());
  EXPECT_THROW(x.reshape(Shape{5}), ShapeError);
  EXPECT_THROW(x.rows(2, 4), ShapeError);
  EXPECT_THROW(x.view<1>(), ShapeError);
}

TEST(Tensor, EmptyTensorsAreHarmless) {
  Runtime runtime;
  Tensor<float> none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.size(), 0);
  auto empty = runtime.allocate_zero<float>("empty", Shape{0, 4});
  EXPECT_TRUE(empty.defined());
  EXPECT_TRUE(to_vector(runtime.compute(), empty).empty());
}

TEST(Bfloat16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bfloat16(1.00390625f).bits, 0x3f80);  // half way: to even
  EXPECT_EQ(bfloat16(1.01171875f).bits, 0x3f82);  // half way: to even
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
  EXPECT_EQ(bfloat16(3.4e38f).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::nanf("")))));
  std::uint32_t signalling = 0x7f800001u;
  float nan;
  std::memcpy(&nan, &signalling, 4);
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(nan))));
}

// Known answers of Random123's Philox 4x32-10.
TEST(Philox, MatchesPublishedVectors) {
  const auto zero = philox(0, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const auto pi = philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull);
  EXPECT_EQ(pi.word[0], 0xd16cfe09u);
  EXPECT_EQ(pi.word[1], 0x94fdccebu);
  EXPECT_EQ(pi.word[2], 0x5001e420u);
  EXPECT_EQ(pi.word[3], 0x24126ea1u);
}

TEST(Philox, NormalHasTheRightMoments) {
  double sum = 0.0, square = 0.0;
  constexpr int n = 20000;
  for (int i = 0; i < n; ++i) {
    const double x = normal(7, 3, static_cast<std::uint64_t>(i));
    sum += x;
    square += x * x;
  }
  EXPECT_NEAR(sum / n, 0.0, 0.03);
  EXPECT_NEAR(square / n, 1.0, 0.04);
}

TEST(SavedTensors, AreAStackWithNamedGroups) {
  Runtime runtime;
  SavedTensors saved;
  auto a = runtime.allocate<float>("a", Shape{100});
  auto b = runtime.allocate<std::int32_t>("b", Shape{10});
  saved.save(a);
  saved.open("gdn_core_attn");
  saved.save(b);
  saved.save(a.rows(0, 50));
  EXPECT_THROW(saved.open("nested"), Error);
  saved.commit();
  EXPECT_EQ(saved.bytes(), 440u);  // a counted once although it was saved twice
  EXPECT_EQ(saved.bytes("gdn_core_attn"), 440u);
  EXPECT_EQ(saved.bytes("attn_core"), 0u);
  EXPECT_EQ(saved.take<float>().extent(0), 50);
  EXPECT_THROW(saved.take<float>(), ShapeError);  // that one was int32
  EXPECT_EQ(saved.take<float>().extent(0), 100);
  EXPECT_THROW(saved.take<float>(), Error);
  EXPECT_TRUE(saved.empty());
}

TEST(Sequences, RejectsBrokenBoundaries) {
  Runtime runtime;
  EXPECT_THROW(make_sequences(runtime, {0}, 0), ShapeError);
  EXPECT_THROW(make_sequences(runtime, {0, 3}, 4), ShapeError);
  EXPECT_THROW(make_sequences(runtime, {1, 4}, 4), ShapeError);
  EXPECT_THROW(make_sequences(runtime, {0, 3, 2, 4}, 4), ShapeError);
  const auto sequences = make_sequences(runtime, {0, 2, 2, 4}, 4);
  EXPECT_EQ(sequences.count(), 3);
  EXPECT_EQ(to_vector(runtime.compute(), sequences.positions), (std::vector<std::int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(to_vector(runtime.compute(), sequences.sequence_of), (std::vector<std::int32_t>{0, 0, 2, 2}));
}

}  // namespace
}  // namespace deltaport
