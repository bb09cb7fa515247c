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
