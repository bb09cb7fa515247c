// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/tile_gemm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "deltaport/core/vector_exp.hpp"

namespace {

using namespace deltaport;

template <class T>
struct Matrix {
  int rows, columns;
  std::int64_t stride;
  std::vector<T> data;
  Matrix(int r, int c, int pad, std::mt19937& engine) : rows(r), columns(c), stride(c + pad) {
    std::normal_distribution<double> normal;
    data.resize(static_cast<std::size_t>(rows * stride + 1));
    for (T& x : data) x = static_cast<T>(normal(engine));
  }
  const T* at() const { return data.data() + 1; }  // not aligned
  T* at() { return data.data() + 1; }
  T operator()(int r, int c) const { return at()[r * stride + c]; }
};

template <class T>
class TileGemm : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(TileGemm, Types);

template <class T>
void check(int m, int n, int k, bool ta, bool tb, T alpha, T beta, std::mt19937& engine) {
  const Matrix<T> a(ta ? k : m, ta ? m : k, 3, engine), b(tb ? n : k, tb ? k : n, 2, engine);
  Matrix<T> c(m, n, 5, engine);
  const Matrix<T> before = c;
  if (beta == T(0)) std::fill(c.data.begin(), c.data.end(), std::numeric_limits<T>::quiet_NaN());
  tile_gemm(ta ? TileTranspose::yes : TileTranspose::no, tb ? TileTranspose::yes : TileTranspose::no, m, n, k,
            alpha, a.at(), a.stride, b.at(), b.stride, beta, c.at(), c.stride);
  const double tolerance = (sizeof(T) == 4 ? 1e-6 : 1e-15) * (k + 4);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int l = 0; l < k; ++l) sum += double(ta ? a(l, i) : a(i, l)) * double(tb ? b(j, l) : b(l, j));
      ASSERT_NEAR(c(i, j), alpha * sum + beta * double(before(i, j)), tolerance)
          << m << "x" << n << "x" << k << " at " << i << "," << j;
    }
    for (int j = n; j < c.stride; ++j)
      ASSERT_TRUE(beta == T(0) ? std::isnan(c(i, j)) : c(i, j) == before(i, j)) << "wrote beyond a row";
  }
}

TYPED_TEST(TileGemm, AllTransposesAndTails) {
  std::mt19937 engine(1);
  for (int m : {1, 5, 6, 7, 16, 33})
    for (int n : {1, 3, 4, 8, 15, 16, 17, 48, 64, 65, 131})
      for (int k : {1, 2, 16, 31, 64})
        for (int transposes = 0; transposes < 4; ++transposes)
          check<TypeParam>(m, n, k, transposes & 1, transposes & 2, TypeParam(1), TypeParam(0), engine);
}

TYPED_TEST(TileGemm, ScalesAndDepth) {
  std::mt19937 engine(2);
  for (int k : {0, 255, 256, 257, 700})
    for (double beta : {0.0, 1.0, -0.5})
      for (int transposes = 0; transposes < 4; ++transposes)
        check<TypeParam>(13, 70, k, transposes & 1, transposes & 2, TypeParam(-1.5), TypeParam(beta), engine);
}

// A row of C does not depend on how many rows are computed with it.
TYPED_TEST(TileGemm, RowsDoNotDependOnTheirNumber) {
  std::mt19937 engine(3);
  const int m = 64, n = 80, k = 300;
  const Matrix<TypeParam> a(m, k, 0, engine), b(k, n, 0, engine);
  Matrix<TypeParam> all(m, n, 0, engine), one(1, n, 0, engine);
  tile_gemm(TileTranspose::no, TileTranspose::no, m, n, k, TypeParam(1), a.at(), a.stride, b.at(), b.stride,
            TypeParam(0), all.at(), all.stride);
  for (int i = 0; i < m; ++i) {
    tile_gemm(TileTranspose::no, TileTranspose::no, 1, n, k, TypeParam(1), a.at() + i * a.stride, a.stride,
              b.at(), b.stride, TypeParam(0), one.at(), one.stride);
    for (int j = 0; j < n; ++j) ASSERT_EQ(one(0, j), all(i, j));
  }
}

TEST(VectorExp, IsAccurateOverTheRange) {
  std::vector<float> x;
  for (double value = -87.3; value < 88.7; value += 0.00137) x.push_back(static_cast<float>(value));
  std::vector<float> y(x.size());
  vector_exp(static_cast<std::int64_t>(x.size()), x.data(), y.data());
  for (std::size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(y[i] / std::exp(static_cast<double>(x[i])), 1.0, 2e-7) << x[i];
}

TEST(VectorExp, Limits) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x{
      -infinity, -1e30f, -88.0f, 0.0f, 89.0f, infinity, std::numeric_limits<float>::quiet_NaN()};
  vector_exp(7, x.data(), x.data());
  EXPECT_EQ(x[0], 0.0f);
  EXPECT_EQ(x[1], 0.0f);
  EXPECT_EQ(x[2], 0.0f);
  EXPECT_EQ(x[3], 1.0f);
  EXPECT_EQ(x[4], infinity);
  EXPECT_EQ(x[5], infinity);
  EXPECT_TRUE(std::isnan(x[6]));
}

}  // namespace
