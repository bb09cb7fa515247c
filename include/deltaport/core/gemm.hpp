// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "deltaport/core/runtime.hpp"

namespace deltaport {

enum class Transpose { no, yes };

/// One product as it was asked for.
struct GemmCall {
  Transpose trans_a, trans_b;
  std::int64_t m, n, k;
  std::size_t element_bytes;
  friend auto operator<=>(const GemmCall&, const GemmCall&) = default;
};

/// While a log is set, every gemm() appends its shape to it; nullptr stops. For benchmarks; not thread-safe.
void set_gemm_log(std::vector<GemmCall>* log);

/// Row-major C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta C on the runtime's compute stream (enqueue-only; on
/// hosts it has finished on return). lda, ldb and ldc are row strides in elements of the stored matrices.
/// beta = 0 does not read C. Never called inside a parallel region. T is float or double. OpenBLAS on hosts,
/// cuBLAS (no TF32) on CUDA, the built-in tile kernel where neither was built in. Same bits from run to run.
template <class T>
void gemm(Runtime& runtime, Transpose trans_a, Transpose trans_b, std::int64_t m, std::int64_t n,
          std::int64_t k, T alpha, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c,
          std::int64_t ldc);

/// y[rows,out] = x[rows,in] w[out,in]^T (+ y when accumulate): the forward of a bias-free linear layer.
/// ldx and ldy are row strides in elements, so slices of wider tensors can be used.
template <class T>
void linear_forward(Runtime& runtime, std::int64_t rows, std::int64_t in, std::int64_t out, const T* x,
                    std::int64_t ldx, const T* w, T* y, std::int64_t ldy) {
  gemm<T>(runtime, Transpose::no, Transpose::yes, rows, out, in, T(1), x, ldx, w, in, T(0), y, ldy);
}

/// dx[rows,in] = beta dx + dy[rows,out] w[out,in]
template <class T>
void linear_backward_input(Runtime& runtime, std::int64_t rows, std::int64_t in, std::int64_t out,
                           const T* dy, std::int64_t lddy, const T* w, T beta, T* dx, std::int64_t lddx) {
  gemm<T>(runtime, Transpose::no, Transpose::no, rows, in, out, T(1), dy, lddy, w, in, beta, dx, lddx);
}

/// dw[out,in] += dy[rows,out]^T x[rows,in]: weight gradients accumulate over micro-batches.
template <class T>
void linear_backward_weight(Runtime& runtime, std::int64_t rows, std::int64_t in, std::int64_t out,
                            const T* dy, std::int64_t lddy, const T* x, std::int64_t ldx, T* dw) {
  gemm<T>(runtime, Transpose::yes, Transpose::no, out, in, rows, T(1), dy, lddy, x, ldx, T(1), dw, in);
}

}  // namespace deltaport
