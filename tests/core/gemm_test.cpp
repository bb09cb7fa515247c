// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/gemm.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "deltaport/core/rng.hpp"

namespace deltaport {
namespace {

template <class T>
std::vector<T> random_values(std::uint64_t stream, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(normal(11, stream, i));
  return values;
}

struct Case {
  std::int64_t m, n, k;
  Transpose ta, tb;
  double alpha, beta;
};

template <class T>
double relative_error(Runtime& runtime, const Case& c) {
  const std::int64_t lda = (c.ta == Transpose::yes ? c.m : c.k) + 3;
  const std::int64_t ldb = (c.tb == Transpose::yes ? c.k : c.n) + 5;
  const std::int64_t ldc = c.n + 2;
  const auto a = random_values<T>(1, lda * (c.ta == Transpose::yes ? c.k : c.m));
  const auto b = random_values<T>(2, ldb * (c.tb == Transpose::yes ? c.n : c.k));
  const auto start = random_values<T>(3, ldc * c.m);
  const auto device = [&](const std::vector<T>& host) {
    return from_vector(runtime.compute(), runtime.arena(), "operand",
                       Shape{static_cast<std::int64_t>(host.size())}, host);
  };
  const auto da = device(a), db = device(b), dc = device(start);
  gemm<T>(runtime, c.ta, c.tb, c.m, c.n, c.k, T(c.alpha), da.data(), lda, db.data(), ldb, T(c.beta),
          dc.data(), ldc);
  const auto result = to_vector(runtime.compute(), dc);
  double error = 0.0, norm = 0.0;
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * ldc + j);
      double expected = start[at];
      if (j < c.n) {
        double sum = 0.0;
        for (std::int64_t l = 0; l < c.k; ++l)
          sum += static_cast<double>(
                     a[static_cast<std::size_t>(c.ta == Transpose::yes ? l * lda + i : i * lda + l)]) *
                 static_cast<double>(
                     b[static_cast<std::size_t>(c.tb == Transpose::yes ? j * ldb + l : l * ldb + j)]);
        expected = c.alpha * sum + c.beta * expected;
      }
      error += std::pow(static_cast<double>(result[at]) - expected, 2);
      norm += expected * expected;
    }
  return std::sqrt(error / norm);
}

TEST(Gemm, MatchesTheDefinitionForEveryTransposeAndStride) {
  Runtime runtime;
  for (const auto ta : {Transpose::no, Transpose::yes})
    for (const auto tb : {Transpose::no, Transpose::yes})
      for (const auto& [m, n, k] :
           {std::array<std::int64_t, 3>{1, 1, 1}, {5, 7, 3}, {64, 33, 65}, {100, 1, 17}}) {
        const Case c{m, n, k, ta, tb, 0.5, 2.0};
        EXPECT_LE(relative_error<float>(runtime, c), 1e-6) << m << " " << n << " " << k;
        EXPECT_LE(relative_error<double>(runtime, c), 1e-14) << m << " " << n << " " << k;
      }
}

std::vector<bfloat16> random_halves(std::uint64_t stream, std::int64_t count) {
  std::vector<bfloat16> values;
  for (const float value : random_values<float>(stream, count)) values.emplace_back(value);
  return values;
}
std::vector<double> widened(const std::vector<bfloat16>& x) {
  std::vector<double> out;
  for (const bfloat16 value : x) out.push_back(static_cast<double>(widen(value)));
  return out;
}

/// Largest |C - exact| over the bound: k float32 roundings of a sum of products, and for bfloat16 half a unit
/// of C.
template <class C>
double bfloat16_error(Runtime& runtime, const Case& c) {
  const std::int64_t lda = (c.ta == Transpose::yes ? c.m : c.k) + 3;
  const std::int64_t ldb = (c.tb == Transpose::yes ? c.k : c.n) + 5;
  const std::int64_t ldc = c.n + 2;
  const auto a = random_halves(1, lda * (c.ta == Transpose::yes ? c.k : c.m));
  const auto b = random_halves(2, ldb * (c.tb == Transpose::yes ? c.n : c.k));
  std::vector<C> start;
  for (const float value : random_values<float>(3, ldc * c.m)) start.push_back(static_cast<C>(value));
  const auto device = [&]<class X>(const std::vector<X>& host) {
    return from_vector(runtime.compute(), runtime.arena(), "operand",
                       Shape{static_cast<std::int64_t>(host.size())}, host);
  };
  const auto da = device(a), db = device(b);
  const auto dc = device(start);
  gemm<bfloat16>(runtime, c.ta, c.tb, c.m, c.n, c.k, static_cast<float>(c.alpha), da.data(), lda, db.data(),
                 ldb, static_cast<float>(c.beta), dc.data(), ldc);
  const auto result = to_vector(runtime.compute(), dc);
  const auto wa = widened(a), wb = widened(b);
  double worst = 0.0;
  for (std::int64_t i = 0; i < c.m; ++i)
    for (std::int64_t j = 0; j < ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * ldc + j);
      const double before = static_cast<double>(widen(start[at])),
                   got = static_cast<double>(widen(result[at]));
      if (j >= c.n) {
        if (got != before) return INFINITY;
        continue;
      }
      double sum = c.beta * before, magnitude = std::abs(sum);
      for (std::int64_t l = 0; l < c.k; ++l) {
        const double x = wa[static_cast<std::size_t>(c.ta == Transpose::yes ? l * lda + i : i * lda + l)];
        const double y = wb[static_cast<std::size_t>(c.tb == Transpose::yes ? j * ldb + l : l * ldb + j)];
        sum += c.alpha * x * y;
        magnitude += std::abs(c.alpha * x * y);
      }
      double bound = static_cast<double>(c.k + 4) * 0x1p-24 * magnitude;
      if constexpr (is_half<C>) bound += 1.01 * 0x1p-8 * std::abs(sum) + 1e-30;
      worst = std::max(worst, std::abs(got - sum) / bound);
    }
  return worst;
}

TEST(Gemm, Bfloat16SumsInFloat32AndRoundsOnce) {
  Runtime runtime;
  for (const auto ta : {Transpose::no, Transpose::yes})
    for (const auto tb : {Transpose::no, Transpose::yes})
      for (const auto& [m, n, k] :
           {std::array<std::int64_t, 3>{1, 1, 1}, {5, 7, 3}, {64, 33, 65}, {100, 1, 17}})
        for (const double beta : {0.0, 1.0, 2.0}) {
          const Case c{m, n, k, ta, tb, 0.5, beta};
          EXPECT_LE(bfloat16_error<float>(runtime, c), 1.0) << m << " " << n << " " << k << " " << beta;
          EXPECT_LE(bfloat16_error<bfloat16>(runtime, c), 1.0) << m << " " << n << " " << k << " " << beta;
        }
}

// More than one tile in each direction, with a rest.
TEST(Gemm, Bfloat16TilesMeetWithoutASeam) {
  Runtime runtime;
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{gemm_tile + 5, 3, 40},
                                {3, gemm_tile + 5, 40},
                                {3, 4, 2 * gemm_tile + 70}})
    for (const auto t : {Transpose::no, Transpose::yes})
      for (const double beta : {0.0, 1.0}) {
        const Case c{m, n, k, t, t == Transpose::no ? Transpose::yes : Transpose::no, 1.0, beta};
        EXPECT_LE(bfloat16_error<float>(runtime, c), 1.0) << m << " " << n << " " << k << " " << beta;
        EXPECT_LE(bfloat16_error<bfloat16>(runtime, c), 1.0) << m << " " << n << " " << k << " " << beta;
      }
}

// Weight gradients of micro-batches are added to what is there as whole sums: C + P to the last bit, in
// float32.
TEST(Gemm, Bfloat16ProductsAccumulateInFloat32) {
  Runtime runtime;
  const std::int64_t rows = 64, in = 37, out = 21;
  const auto total = runtime.allocate_zero<float>("dw", Shape{out, in});
  std::vector<float> sum(static_cast<std::size_t>(out * in), 0.0f);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const auto dy = from_vector(runtime.compute(), runtime.arena(), "dy", Shape{rows, out},
                                random_halves(step, rows * out));
    const auto x = from_vector(runtime.compute(), runtime.arena(), "x", Shape{rows, in},
                               random_halves(10 + step, rows * in));
    const auto alone = runtime.allocate_zero<float>("dw", Shape{out, in});
    linear_backward_weight(runtime, rows, in, out, dy.data(), out, x.data(), in, alone.data());
    linear_backward_weight(runtime, rows, in, out, dy.data(), out, x.data(), in, total.data());
    const auto part = to_vector(runtime.compute(), alone);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  EXPECT_EQ(to_vector(runtime.compute(), total), sum);
}

TEST(Gemm, LogsTheTypesOfAProduct) {
  Runtime runtime;
  std::vector<GemmCall> calls;
  const auto x = runtime.allocate_zero<bfloat16>("x", Shape{4});
  const auto y = runtime.allocate_zero<float>("y", Shape{4});
  set_gemm_log(&calls);
  linear_forward(runtime, 2, 2, 2, x.data(), 2, x.data(), y.data(), 2);
  set_gemm_log(nullptr);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].operands, Dtype::bf16);
  EXPECT_EQ(calls[0].output, Dtype::f32);
}

TEST(Gemm, BetaZeroDoesNotReadTheOutput) {
  RuntimeOptions options;
  options.arena = {.slab_bytes = 1 << 20, .poison = true};
  Runtime runtime(options);
  const auto a = from_vector<float>(runtime.compute(), runtime.arena(), "a", Shape{2}, {1, 2});
  const auto c = runtime.allocate<float>("c", Shape{4});
  gemm<float>(runtime, Transpose::no, Transpose::no, 2, 2, 1, 1.0f, a.data(), 1, a.data(), 2, 0.0f, c.data(),
              2);
  EXPECT_EQ(to_vector(runtime.compute(), c), (std::vector<float>{1, 2, 2, 4}));
}

TEST(Gemm, EmptyProductsAreAllowed) {
  Runtime runtime;
  const auto c = from_vector<float>(runtime.compute(), runtime.arena(), "c", Shape{2}, {1, 2});
  gemm<float>(runtime, Transpose::no, Transpose::no, 0, 2, 3, 1.0f, nullptr, 3, nullptr, 2, 0.0f, c.data(),
              2);
  EXPECT_EQ(to_vector(runtime.compute(), c), (std::vector<float>{1, 2}));
}

}  // namespace
}  // namespace deltaport
