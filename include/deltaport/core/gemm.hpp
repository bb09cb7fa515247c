// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "deltaport/core/runtime.hpp"

namespace deltaport {

enum class Transpose { no, yes };

/// Rows, columns and steps of the tiles in which hosts widen bfloat16 operands.
inline constexpr int gemm_tile = 1024;

/// One product as it was asked for.
struct GemmCall {
  Transpose trans_a, trans_b;
  std::int64_t m, n, k;
  Dtype operands, output;
  friend auto operator<=>(const GemmCall&, const GemmCall&) = default;
};

/// While a log is set, every gemm() appends its shape to it; nullptr stops. For benchmarks; not thread-safe.
void set_gemm_log(std::vector<GemmCall>* log);

/// Row-major C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta C on the runtime's compute stream (enqueue-only; on
/// hosts it has finished on return). lda, ldb and ldc are row strides in elements of the stored matrices.
/// beta = 0 does not read C. Never called inside a parallel region. OpenBLAS on hosts, cuBLAS (no TF32) on
/// CUDA, the built-in tile kernel where neither was built in. Same bits from run to run.
///
/// T is float, double or bfloat16; C is T, or float where T is bfloat16. Sums are float32 for bfloat16: C in
/// float32 is never rounded, C in bfloat16 once, at the end. Hosts have no bfloat16 products: tiles of the
/// operands are widened into at most 12 MiB of the arena and go through the float32 product.
template <class T, class C>
void gemm(Runtime& runtime, Transpose trans_a, Transpose trans_b, std::int64_t m, std::int64_t n,
          std::int64_t k, Accumulate<T> alpha, const T* a, std::int64_t lda, const T* b, std::int64_t ldb,
          Accumulate<T> beta, C* c, std::int64_t ldc);

/// y[rows,out] = x[rows,in] w[out,in]^T: the forward of a bias-free linear layer. ldx and ldy are row strides
/// in elements, so slices of wider tensors can be used. y is T or Accumulate<T>.
template <class T, class Y>
void linear_forward(Runtime& runtime, std::int64_t rows, std::int64_t in, std::int64_t out, const T* x,
                    std::int64_t ldx, const T* w, Y* y, std::int64_t ldy) {
  gemm<T>(runtime, Transpose::no, Transpose::yes, rows, out, in, 1, x, ldx, w, in, 0, y, ldy);
}

/// dx[rows,in] = beta dx + dy[rows,out] w[out,in]
template <class T>
void linear_backward_input(Runtime& runtime, std::int64_t rows, std::int64_t in, std::int64_t out,
                           const T* dy, std::int64_t lddy, const T* w, Accumulate<T> beta, T* dx,
                           std::int64_t lddx) {
  gemm<T>(runtime, Transpose::no, Transpose::no, rows, in, out, 1, dy, lddy, w, in, beta, dx, lddx);
}

/// dw[out,in] += dy[rows,out]^T x[rows,in]: weight gradients accumulate over micro-batches, in Accumulate<T>.
template <class T>
void linear_backward_weight(Runtime& runtime, std::int64_t rows, std::int64_t in, std::int64_t out,
                            const T* dy, std::int64_t lddy, const T* x, std::int64_t ldx, Accumulate<T>* dw) {
  gemm<T>(runtime, Transpose::yes, Transpose::no, out, in, rows, 1, dy, lddy, x, ldx, 1, dw, in);
}

}  // namespace deltaport
