// SPDX-License-Identifier: Apache-2.0
// Chooses the instruction set once, at the first call.
#include "deltaport/core/tile_gemm.hpp"

#include "deltaport/core/vector_exp.hpp"

namespace deltaport {
namespace tile {

#define DELTAPORT_DECLARE_TILE(isa)                                                                          \
  namespace isa {                                                                                            \
  void multiply(bool trans_a, bool trans_b, int m, int n, int k, float alpha, const float* a, long long lda, \
                const float* b, long long ldb, float beta, float* c, long long ldc);                         \
  void multiply(bool trans_a, bool trans_b, int m, int n, int k, double alpha, const double* a,              \
                long long lda, const double* b, long long ldb, double beta, double* c, long long ldc);       \
  void exponential(long long n, const float* x, float* y);                                                   \
  }
DELTAPORT_DECLARE_TILE(baseline)
#ifdef DELTAPORT_TILE_X86
DELTAPORT_DECLARE_TILE(avx2)
DELTAPORT_DECLARE_TILE(avx512)
#endif
#undef DELTAPORT_DECLARE_TILE

namespace {

template <class T>
using Multiply = void (*)(bool, bool, int, int, int, T, const T*, long long, const T*, long long, T, T*,
                          long long);

struct Kernels {
  const char* isa;
  Multiply<float> multiply_float;
  Multiply<double> multiply_double;
  void (*exponential)(long long, const float*, float*);
};

Kernels choose() {
#ifdef DELTAPORT_TILE_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma"))
    return {"avx512", avx512::multiply, avx512::multiply, avx512::exponential};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return {"avx2", avx2::multiply, avx2::multiply, avx2::exponential};
#endif
  return {"baseline", baseline::multiply, baseline::multiply, baseline::exponential};
}

const Kernels& kernels() {
  static const Kernels chosen = choose();
  return chosen;
}

}  // namespace
}  // namespace tile

void tile_gemm(TileTranspose trans_a, TileTranspose trans_b, int m, int n, int k, float alpha, const float* a,
               std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  tile::kernels().multiply_float(trans_a == TileTranspose::yes, trans_b == TileTranspose::yes, m, n, k, alpha,
                                 a, lda, b, ldb, beta, c, ldc);
}
void tile_gemm(TileTranspose trans_a, TileTranspose trans_b, int m, int n, int k, double alpha,
               const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
               std::int64_t ldc) {
  tile::kernels().multiply_double(trans_a == TileTranspose::yes, trans_b == TileTranspose::yes, m, n, k,
                                  alpha, a, lda, b, ldb, beta, c, ldc);
}
const char* tile_gemm_isa() {
  return tile::kernels().isa;
}

void vector_exp(std::int64_t n, const float* x, float* y) {
  tile::kernels().exponential(n, x, y);
}
void vector_exp(std::int64_t n, const double* x, double* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = __builtin_exp(x[i]);
}

}  // namespace deltaport
