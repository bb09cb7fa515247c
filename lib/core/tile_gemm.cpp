// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/tile_gemm.hpp"

namespace deltaport {
namespace {
template <class T>
void product(TileTranspose ta, TileTranspose tb, int m, int n, int k, T alpha, const T* a, std::int64_t lda, const T* b,
             std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      T sum = 0;
      for (int l = 0; l < k; ++l)
        sum += (ta == TileTranspose::yes ? a[l * lda + i] : a[i * lda + l]) *
               (tb == TileTranspose::yes ? b[j * ldb + l] : b[l * ldb + j]);
      T& out = c[i * ldc + j];
      out = beta == T(0) ? alpha * sum : alpha * sum + beta * out;
    }
}
}  // namespace

void tile_gemm(TileTranspose ta, TileTranspose tb, int m, int n, int k, float alpha, const float* a, std::int64_t lda,
               const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void tile_gemm(TileTranspose ta, TileTranspose tb, int m, int n, int k, double alpha, const double* a, std::int64_t lda,
               const double* b, std::int64_t ldb, double beta, double* c, std::int64_t ldc) {
  product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
const char* tile_gemm_isa() { return "baseline"; }

}  // namespace deltaport
