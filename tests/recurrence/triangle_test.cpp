// SPDX-License-Identifier: Apache-2.0
#include "recurrence/portable/triangle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "deltaport/core/runtime.hpp"

namespace {

using namespace deltaport;
using namespace deltaport::recurrence::portable;

template <class T>
struct Invert {
  int n;
  std::int64_t ld;
  const T* strict;
  T *inverse, *scratch;
  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    invert_unit_lower(team, n, strict, inverse, ld, scratch);
  }
};

template <class T>
struct Products {
  int n, columns;
  const T *lower, *x;
  T *y, *y_transposed;
  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    lower_times(team, n, columns, lower, n, x, columns, T(0), y, columns);
    lower_transposed_times(team, n, columns, lower, n, x, columns, T(2), y_transposed, columns);
  }
};

TeamPolicy one_team(Runtime& runtime) {
  return TeamPolicy(runtime.compute(), 1, runs_on_host ? 1 : 8, runs_on_host ? 1 : 32);
}

template <class T>
Tensor<T> upload(Runtime& runtime, const std::vector<double>& values) {
  return from_vector<T>(runtime.compute(), runtime.arena(), "test",
                        {static_cast<std::int64_t>(values.size())},
                        std::vector<T>(values.begin(), values.end()));
}

// Strictly lower triangular with rows of absolute sum `norm`; garbage on and above the diagonal must not
// matter.
std::vector<double> random_strict(int n, int ld, double norm, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<double> a(static_cast<std::size_t>(n * ld));
  for (int i = 1; i < n; ++i) {
    double sum = 0;
    for (int j = 0; j < i; ++j) sum += std::abs(a[static_cast<std::size_t>(i * ld + j)] = normal(engine));
    for (int j = 0; j < i; ++j)
      a[static_cast<std::size_t>(i * ld + j)] =
          static_cast<float>(a[static_cast<std::size_t>(i * ld + j)] * norm / sum);
  }
  return a;
}

std::vector<double> substitute(int n, int ld, const std::vector<double>& a) {
  std::vector<double> x(static_cast<std::size_t>(n * n));
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j) {
      double sum = i == j;
      for (int m = j; m < i; ++m)
        sum -= a[static_cast<std::size_t>(i * ld + m)] * x[static_cast<std::size_t>(m * n + j)];
      x[static_cast<std::size_t>(i * n + j)] = sum;
    }
  return x;
}

template <class T>
void check_inverse(int n, double norm, double tolerance) {
  RuntimeOptions options;
  options.arena.poison = true;
  Runtime runtime(options);
  const int ld = n + 3;
  const auto a = random_strict(n, ld, norm, 17 + static_cast<std::uint64_t>(n));
  const auto strict = upload<T>(runtime, a);
  const auto inverse = runtime.allocate<T>("inverse", {n, ld});
  const auto scratch = runtime.allocate<T>("scratch", {16, n});
  Kokkos::parallel_for(one_team(runtime), Invert<T>{n, ld, strict.data(), inverse.data(), scratch.data()});
  const auto result = to_vector(runtime.compute(), inverse);
  const auto expected = substitute(n, ld, a);
  for (int i = 0; i < n; ++i) {
    double row = 1;
    for (int j = 0; j < n; ++j) row = std::max(row, std::abs(expected[static_cast<std::size_t>(i * n + j)]));
    for (int j = 0; j < n; ++j)
      ASSERT_NEAR(result[static_cast<std::size_t>(i * ld + j)], expected[static_cast<std::size_t>(i * n + j)],
                  tolerance * row)
          << n << ", norm " << norm << ": " << i << "," << j;
  }
}

TEST(Triangle, InverseIsForwardSubstitution) {
  for (int n : {1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64}) {
    check_inverse<double>(n, 1.0, 1e-14);
    check_inverse<float>(n, 1.0, 1e-6);
  }
}

// Large off-diagonal parts: the inverse grows by many orders of magnitude and must still be right.
TEST(Triangle, InverseOfLargeMatrices) {
  for (double norm : {5.0, 37.3}) {
    check_inverse<double>(64, norm, 1e-11);
    check_inverse<float>(64, norm, 1e-3);
  }
}

TEST(Triangle, ProductsReadOnlyTheLowerPart) {
  Runtime runtime;
  const int columns = 9;
  for (int n : {1, 16, 31, 32, 33, 64}) {
    std::mt19937_64 engine(3);
    std::normal_distribution<double> normal;
    std::vector<double> lower(static_cast<std::size_t>(n * n)), x(static_cast<std::size_t>(n * columns));
    for (double& value : x) value = normal(engine);
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) {
        const bool skipped = j / triangle_block > i / triangle_block;
        lower[static_cast<std::size_t>(i * n + j)] = j <= i ? normal(engine) : skipped ? std::nan("") : 0.0;
      }
    const auto y = upload<double>(runtime, x), y_transposed = upload<double>(runtime, x);
    const auto lower_tensor = upload<double>(runtime, lower), x_tensor = upload<double>(runtime, x);
    Kokkos::parallel_for(one_team(runtime), Products<double>{n, columns, lower_tensor.data(), x_tensor.data(),
                                                             y.data(), y_transposed.data()});
    const auto plain = to_vector(runtime.compute(), y), turned = to_vector(runtime.compute(), y_transposed);
    for (int i = 0; i < n; ++i)
      for (int c = 0; c < columns; ++c) {
        double sum = 0, sum_transposed = 2 * x[static_cast<std::size_t>(i * columns + c)];
        for (int j = 0; j <= i; ++j)
          sum += lower[static_cast<std::size_t>(i * n + j)] * x[static_cast<std::size_t>(j * columns + c)];
        for (int j = i; j < n; ++j)
          sum_transposed +=
              lower[static_cast<std::size_t>(j * n + i)] * x[static_cast<std::size_t>(j * columns + c)];
        ASSERT_NEAR(plain[static_cast<std::size_t>(i * columns + c)], sum, 1e-12);
        ASSERT_NEAR(turned[static_cast<std::size_t>(i * columns + c)], sum_transposed, 1e-12);
      }
  }
}

}  // namespace
