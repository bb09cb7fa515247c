// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/tile_gemm.hpp"

namespace deltaport {

namespace detail {

/// Rows [first, first + rows) of one column of C, by one vector lane.
template <class T, class TA, class TB>
KOKKOS_INLINE_FUNCTION void team_gemm_column(TileTranspose trans_a, TileTranspose trans_b, int first,
                                             int rows, int column, int k, T alpha, const TA* a,
                                             std::int64_t lda, const TB* b, std::int64_t ldb, T beta, T* c,
                                             std::int64_t ldc) {
  constexpr int most = 4;
  T sum[most] = {T(0), T(0), T(0), T(0)};
  const std::int64_t row_stride = trans_a == TileTranspose::yes ? 1 : lda;
  const std::int64_t step = trans_a == TileTranspose::yes ? lda : 1;
  const std::int64_t b_step = trans_b == TileTranspose::yes ? 1 : ldb;
  const TA* a_row = a + first * row_stride;
  const TB* b_column = trans_b == TileTranspose::yes ? b + column * ldb : b + column;
  for (int l = 0; l < k; ++l) {
    const T value = static_cast<T>(b_column[l * b_step]);
    for (int r = 0; r < most; ++r)
      if (r < rows) sum[r] += static_cast<T>(a_row[r * row_stride + l * step]) * value;
  }
  for (int r = 0; r < most; ++r)
    if (r < rows) {
      T& out = c[(first + r) * ldc + column];
      out = beta == T(0) ? alpha * sum[r] : alpha * sum[r] + beta * out;
    }
}

}  // namespace detail

/// Row-major C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta C by one team, called by all of its threads with the
/// same arguments; op, strides and beta as in tile_gemm. Starts and ends with a team barrier. On hosts (teams
/// of one thread) this is tile_gemm; on devices each vector lane owns columns of C and adds up over ascending
/// k. There the operands may also be halves; on hosts they must be widened before.
template <class T, class TA, class TB>
KOKKOS_INLINE_FUNCTION void team_gemm(const TeamMember& team, TileTranspose trans_a, TileTranspose trans_b,
                                      int m, int n, int k, T alpha, const TA* a, std::int64_t lda,
                                      const TB* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  KOKKOS_IF_ON_HOST(
      (static_cast<void>(team); tile_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);))
  KOKKOS_IF_ON_DEVICE((team.team_barrier(); Kokkos::parallel_for(
                           Kokkos::TeamThreadRange(team, (m + 3) / 4),
                           [=](int block) {
                             const int rows = m - 4 * block < 4 ? m - 4 * block : 4;
                             Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, n), [=](int column) {
                               detail::team_gemm_column(trans_a, trans_b, 4 * block, rows, column, k, alpha,
                                                        a, lda, b, ldb, beta, c, ldc);
                             });
                           });
                       team.team_barrier();))
}

}  // namespace deltaport
