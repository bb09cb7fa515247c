// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/gemm.hpp"

#include <algorithm>
#include <type_traits>

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/tile_gemm.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <cublas_v2.h>
#elif defined(DELTAPORT_HAVE_CBLAS)
#include <cblas.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#endif
#ifndef KOKKOS_ENABLE_CUDA
#include "core/wide_tiles.hpp"
#endif

namespace deltaport {
namespace {

std::vector<GemmCall>* gemm_log = nullptr;

#if defined(KOKKOS_ENABLE_CUDA) || defined(DELTAPORT_HAVE_CBLAS)
constexpr bool product_is_kernel = false;
#else
constexpr bool product_is_kernel = true;
#endif

[[maybe_unused]] int as_int(std::int64_t value, const char* what) {
  DELTAPORT_VALIDATE(value >= 0 && value <= 2147483647, ShapeError, "gemm: ", what, " = ", value,
                     " does not fit 32 bits");
  return static_cast<int>(value);
}

#ifdef KOKKOS_ENABLE_CUDA
template <class T>
void product(Runtime& runtime, Transpose ta, Transpose tb, int m, int n, int k, T alpha, const T* a, int lda,
             const T* b, int ldb, T beta, T* c, int ldc) {
  // cuBLAS is column-major: compute C^T = op(B)^T op(A)^T.
  const auto op = [](Transpose t) { return t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  auto handle = static_cast<cublasHandle_t>(runtime.blas_handle());
  cublasStatus_t status;
  if constexpr (std::is_same_v<T, float>)
    status = cublasSgemm(handle, op(tb), op(ta), n, m, k, &alpha, b, ldb, a, lda, &beta, c, ldc);
  else
    status = cublasDgemm(handle, op(tb), op(ta), n, m, k, &alpha, b, ldb, a, lda, &beta, c, ldc);
  DELTAPORT_VALIDATE(status == CUBLAS_STATUS_SUCCESS, DeviceError, "cuBLAS gemm ", m, "x", n, "x", k, ": ",
                     cublasGetStatusString(status));
}

/// Tensor cores with float32 sums. The handle's pedantic mode would keep them off; sums must not be cut to
/// halves either.
template <class C>
void product(Runtime& runtime, Transpose ta, Transpose tb, int m, int n, int k, float alpha,
             const bfloat16* a, int lda, const bfloat16* b, int ldb, float beta, C* c, int ldc) {
  const auto op = [](Transpose t) { return t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  auto handle = static_cast<cublasHandle_t>(runtime.blas_handle());
  constexpr cudaDataType_t output = std::is_same_v<C, bfloat16> ? CUDA_R_16BF : CUDA_R_32F;
  cublasMath_t mode;
  cublasStatus_t status = cublasGetMathMode(handle, &mode);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasSetMathMode(
        handle,
        static_cast<cublasMath_t>(static_cast<int>(CUBLAS_DEFAULT_MATH) |
                                  static_cast<int>(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasGemmEx(handle, op(tb), op(ta), n, m, k, &alpha, b, CUDA_R_16BF, ldb, a, CUDA_R_16BF, lda,
                          &beta, c, output, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    const cublasStatus_t back = cublasSetMathMode(handle, mode);
    if (status == CUBLAS_STATUS_SUCCESS) status = back;
  }
  DELTAPORT_VALIDATE(status == CUBLAS_STATUS_SUCCESS, DeviceError, "cuBLAS bfloat16 gemm ", m, "x", n, "x", k,
                     ": ", cublasGetStatusString(status));
}
#elif defined(DELTAPORT_HAVE_CBLAS)
template <class T>
void blas_product(Transpose ta, Transpose tb, int m, int n, int k, T alpha, const T* a, int lda, const T* b,
                  int ldb, T beta, T* c, int ldc) {
  const auto op = [](Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; };
  if constexpr (std::is_same_v<T, float>)
    cblas_sgemm(CblasRowMajor, op(ta), op(tb), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  else
    cblas_dgemm(CblasRowMajor, op(ta), op(tb), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
#endif

#ifndef KOKKOS_ENABLE_CUDA
/// One tile of C by one thread. How a BLAS cuts a product among its own threads, and with which kernels it ends each
/// piece, depends on their number and on the processor; tiles that depend on the shape alone give the same bits for any
/// number of threads.
template <class T>
struct TileProduct {
  Transpose ta, tb;
  int m, n, k;
  T alpha;
  const T* a;
  int lda;
  const T* b;
  int ldb;
  T beta;
  T* c;
  int ldc;

#ifdef DELTAPORT_HAVE_CBLAS
  /// Large enough that packing the operands anew for each tile costs little.
  int rows() const {
    return static_cast<std::int64_t>(m) * n >= (std::int64_t{1} << 20) ? 512 : 256;
  }
  int columns() const {
    return rows();
  }
#else
  int rows() const {
    return 48;
  }
  int columns() const {
    return n;
  }
#endif
  int across() const {
    return (n + columns() - 1) / columns();
  }
  std::int64_t tiles() const {
    return std::int64_t{1} * ((m + rows() - 1) / rows()) * across();
  }

  void operator()(std::int64_t tile) const {
    const int i = static_cast<int>(tile / across()) * rows(),
              j = static_cast<int>(tile % across()) * columns();
    const int height = std::min(rows(), m - i), width = std::min(columns(), n - j);
    const T* const left = a + (ta == Transpose::yes ? i : static_cast<std::int64_t>(i) * lda);
    const T* const right = b + (tb == Transpose::yes ? static_cast<std::int64_t>(j) * ldb : j);
    T* const out = c + static_cast<std::int64_t>(i) * ldc + j;
#ifdef DELTAPORT_HAVE_CBLAS
#ifdef _OPENMP
    // Of this thread, and until the parallel region ends: a region of one thread would not keep a BLAS from forking.
    omp_set_num_threads(1);
#endif
    blas_product(ta, tb, height, width, k, alpha, left, lda, right, ldb, beta, out, ldc);
#else
    tile_gemm(ta == Transpose::yes ? TileTranspose::yes : TileTranspose::no,
              tb == Transpose::yes ? TileTranspose::yes : TileTranspose::no, height, width, k, alpha, left,
              lda, right, ldb, beta, out, ldc);
#endif
  }
};
template <class T>
void product(Runtime& runtime, Transpose ta, Transpose tb, int m, int n, int k, T alpha, const T* a, int lda,
             const T* b, int ldb, T beta, T* c, int ldc) {
  const TileProduct<T> each{ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc};
#ifdef DELTAPORT_HAVE_CBLAS
  // At once: gemm() enqueues all of the product as one operation.
  using Policy =
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<std::int64_t>, Kokkos::Schedule<Kokkos::Dynamic>>;
  Kokkos::parallel_for("deltaport: gemm", Policy(runtime.compute(), 0, each.tiles(), Kokkos::ChunkSize(1)),
                       each);
#else
  for_each_index(runtime.compute(), "deltaport: gemm", each.tiles(), each);
#endif
}

/// One tile of the product at a time, from widened operands: C is updated over ascending k, in a tile of its
/// own where it is bfloat16. Tiles are cut alike whatever the number of threads.
template <class C>
void product(Runtime& runtime, Transpose ta, Transpose tb, int m, int n, int k, float alpha,
             const bfloat16* a, int lda, const bfloat16* b, int ldb, float beta, C* c, int ldc) {
  wide::Tiles tiles(runtime, m, n, k, std::is_same_v<C, bfloat16>);
  for (int j = 0; j < n; j += wide::tile)
    for (int i = 0; i < m; i += wide::tile) {
      const int rows = std::min(wide::tile, m - i), columns = std::min(wide::tile, n - j);
      C* const out = c + static_cast<std::int64_t>(i) * ldc + j;
      const wide::Output<C> sum = tiles.begin(out, ldc, rows, columns, beta);
      for (int l = 0; l == 0 || l < k; l += wide::tile) {
        const int steps = std::min(wide::tile, k - l);
        const wide::Operand left = tiles.left(ta, a, lda, i, rows, l, steps);
        const wide::Operand right = tiles.right(tb, b, ldb, j, columns, l, steps);
        product<float>(runtime, ta, tb, rows, columns, steps, alpha, left.data, left.stride, right.data,
                       right.stride, l == 0 ? sum.beta : 1.0f, sum.data, sum.stride);
      }
      tiles.finish(sum, out, ldc, rows, columns);
    }
}
#endif

}  // namespace

void set_gemm_log(std::vector<GemmCall>* log) {
  gemm_log = log;
}

template <class T, class C>
void gemm(Runtime& runtime, Transpose trans_a, Transpose trans_b, std::int64_t m, std::int64_t n,
          std::int64_t k, Accumulate<T> alpha, const T* a, std::int64_t lda, const T* b, std::int64_t ldb,
          Accumulate<T> beta, C* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (gemm_log != nullptr) gemm_log->push_back({trans_a, trans_b, m, n, k, dtype_of<T>, dtype_of<C>});
  WorkScope scope(runtime, Work::gemm, "deltaport: gemm");
  const int rows = as_int(m, "m"), columns = as_int(n, "n"), depth = as_int(k, "k");
  const int a_stride = as_int(lda, "lda"), b_stride = as_int(ldb, "ldb"), c_stride = as_int(ldc, "ldc");
  const auto call = [=, &runtime] {
    product(runtime, trans_a, trans_b, rows, columns, depth, alpha, a, a_stride, b, b_stride, beta, c,
            c_stride);
  };
  // The built-in product is a kernel, and enqueues itself.
  if constexpr (product_is_kernel)
    call();
  else
    enqueue("deltaport: gemm", call);
}

#define DELTAPORT_INSTANTIATE(T, C)                                                                          \
  template void gemm<T, C>(Runtime&, Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t,         \
                           Accumulate<T>, const T*, std::int64_t, const T*, std::int64_t, Accumulate<T>, C*, \
                           std::int64_t);
DELTAPORT_INSTANTIATE(float, float)
DELTAPORT_INSTANTIATE(double, double)
DELTAPORT_INSTANTIATE(bfloat16, bfloat16)
DELTAPORT_INSTANTIATE(bfloat16, float)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
