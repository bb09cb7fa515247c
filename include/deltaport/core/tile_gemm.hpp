// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace deltaport {

/// How an operand of tile_gemm is stored: `no` as written, `yes` as its transpose.
enum class TileTranspose { no, yes };

/// Small single-threaded row-major product C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta C, for calls from
/// inside parallel host kernels. Instruction set (baseline, AVX2, AVX-512) chosen once at run time. beta = 0
/// does not read C. Leading dimensions are row strides, in elements, of the stored matrices. Allocates
/// nothing. Each element of C is a sum over ascending k in one fixed order, so results do not depend on the
/// thread count or on m.
void tile_gemm(TileTranspose trans_a, TileTranspose trans_b, int m, int n, int k, float alpha, const float* a,
               std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);
void tile_gemm(TileTranspose trans_a, TileTranspose trans_b, int m, int n, int k, double alpha,
               const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
               std::int64_t ldc);

/// "avx512", "avx2" or "baseline": what tile_gemm uses on this machine.
const char* tile_gemm_isa();

}  // namespace deltaport
