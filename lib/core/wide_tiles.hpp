// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/gemm.hpp"
#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"

/// Tiles of bfloat16 matrices as float32, for products on hosts.
namespace deltaport::wide {

/// Widening an element then costs a thousandth of the operations it takes part in.
inline constexpr int tile = gemm_tile;

/// to[r, c] = from[r, c]; one index is one row.
template <class From, class To>
struct ConvertRows {
  const From* from;
  std::int64_t from_stride;
  To* to;
  std::int64_t to_stride;
  int columns;
  DELTAPORT_HOST_SIMD void operator()(std::int64_t row) const {
    const From* in = from + row * from_stride;
    To* out = to + row * to_stride;
#pragma GCC ivdep
    for (int c = 0; c < columns; ++c) out[c] = static_cast<To>(widen(in[c]));
  }
};

template <class From, class To>
void convert(Runtime& runtime, int rows, int columns, const From* from, std::int64_t from_stride, To* to,
             std::int64_t to_stride) {
  for_each_index(runtime.compute(), "deltaport: gemm tile", rows,
                 ConvertRows<From, To>{from, from_stride, to, to_stride, columns});
}

struct Operand {
  const float* data;
  int stride;
};

/// Where a tile of C is summed up, and what to keep of it.
template <class C>
struct Output {
  float* data;
  int stride;
  float beta;
};

/// Room for one tile of each operand, and of C where it is bfloat16. Host execution spaces only.
class Tiles {
 public:
  Tiles(Runtime& runtime, int m, int n, int k, bool with_output) : runtime_(runtime) {
    const std::int64_t rows = least(m), columns = least(n), steps = least(k);
    left_ = runtime.allocate<float>("gemm tile of A", Shape{rows * steps});
    right_ = runtime.allocate<float>("gemm tile of B", Shape{steps * columns});
    if (with_output) output_ = runtime.allocate<float>("gemm tile of C", Shape{rows * columns});
  }

  /// Rows [i, i + rows) and steps [l, l + steps) of op(A), stored as A is.
  Operand left(Transpose trans, const bfloat16* a, std::int64_t lda, int i, int rows, int l, int steps) {
    return trans == Transpose::yes ? widened(a + l * lda + i, lda, steps, rows, left_.data())
                                   : widened(a + i * lda + l, lda, rows, steps, left_.data());
  }
  /// Steps [l, l + steps) and columns [j, j + columns) of op(B), stored as B is.
  Operand right(Transpose trans, const bfloat16* b, std::int64_t ldb, int j, int columns, int l, int steps) {
    return trans == Transpose::yes ? widened(b + j * ldb + l, ldb, columns, steps, right_.data())
                                   : widened(b + l * ldb + j, ldb, steps, columns, right_.data());
  }

  Output<float> begin(float* c, int ldc, int, int, float beta) { return {c, ldc, beta}; }
  Output<bfloat16> begin(const bfloat16* c, int ldc, int rows, int columns, float beta) {
    if (beta != 0.0f) convert(runtime_, rows, columns, c, ldc, output_.data(), columns);
    return {output_.data(), columns, beta};
  }
  void finish(const Output<float>&, float*, int, int, int) {}
  void finish(const Output<bfloat16>& sum, bfloat16* c, int ldc, int rows, int columns) {
    convert(runtime_, rows, columns, sum.data, sum.stride, c, ldc);
  }

 private:
  static std::int64_t least(int extent) { return extent < tile ? extent : tile; }
  Operand widened(const bfloat16* from, std::int64_t stride, int rows, int columns, float* to) {
    convert(runtime_, rows, columns, from, stride, to, columns);
    return {to, columns > 0 ? columns : 1};
  }

  Runtime& runtime_;
  Tensor<float> left_, right_, output_;
};

}  // namespace deltaport::wide
