// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/portable/team.hpp"

/// Products with lower triangular chunk matrices, in blocks of 32 rows so that most of the zero half is
/// skipped. The upper part inside the diagonal blocks must hold zeros; beyond them nothing is read. `n` is
/// the number of tokens of the chunk.
namespace deltaport::recurrence::portable {

inline constexpr int triangle_block = 32;

KOKKOS_INLINE_FUNCTION int block_length(int n, int begin) {
  return n - begin < triangle_block ? n - begin : triangle_block;
}

/// y[n, columns] = beta y + L x
template <class A>
KOKKOS_INLINE_FUNCTION void lower_times(const TeamMember& team, int n, int columns, const A* lower,
                                        std::int64_t ldl, const A* x, std::int64_t ldx, A beta, A* y,
                                        std::int64_t ldy) {
  for (int i = 0; i < n; i += triangle_block) {
    const int rows = block_length(n, i);
    team_gemm(team, as_is, as_is, rows, columns, i + rows, A(1), lower + i * ldl, ldl, x, ldx, beta,
              y + i * ldy, ldy);
  }
}

/// y[n, columns] = beta y + L^T x
template <class A>
KOKKOS_INLINE_FUNCTION void lower_transposed_times(const TeamMember& team, int n, int columns, const A* lower,
                                                   std::int64_t ldl, const A* x, std::int64_t ldx, A beta,
                                                   A* y, std::int64_t ldy) {
  for (int j = 0; j < n; j += triangle_block)
    team_gemm(team, transposed, as_is, block_length(n, j), columns, n - j, A(1), lower + j * ldl + j, ldl,
              x + j * ldx, ldx, beta, y + j * ldy, ldy);
}

/// out[i, j] = x_i . y_j for i >= j, and for some i < j, to be masked by the caller. x and y are [n, depth].
template <class A>
KOKKOS_INLINE_FUNCTION void lower_gram(const TeamMember& team, int n, int depth, const A* x, std::int64_t ldx,
                                       const A* y, std::int64_t ldy, A* out, std::int64_t ldo) {
  for (int j = 0; j < n; j += triangle_block)
    team_gemm(team, as_is, transposed, n - j, block_length(n, j), depth, A(1), x + j * ldx, ldx, y + j * ldy,
              ldy, A(0), out + j * ldo + j, ldo);
}

namespace detail {

/// Inverse of the unit lower triangular block at `begin`, by forward substitution, row by row.
template <class A>
void invert_block_on_host(int begin, int rows, const A* strict, A* inverse, std::int64_t ld) {
  for (int i = 0; i < rows; ++i) {
    A* out = inverse + (begin + i) * ld + begin;
    for (int j = 0; j < rows; ++j) out[j] = i == j ? A(1) : A(0);
    for (int m = 0; m < i; ++m) {
      const A factor = strict[(begin + i) * ld + begin + m];
      const A* above = inverse + (begin + m) * ld + begin;
      for (int j = 0; j < i; ++j) out[j] -= factor * above[j];
    }
  }
}

/// The same by one lane per column.
template <class A>
KOKKOS_INLINE_FUNCTION void invert_column(int begin, int rows, int column, const A* strict, A* inverse,
                                          std::int64_t ld) {
  for (int i = 0; i < rows; ++i) {
    A sum = i == column ? A(1) : A(0);
    for (int m = column; m < i; ++m)
      sum -= strict[(begin + i) * ld + begin + m] * inverse[(begin + m) * ld + begin + column];
    inverse[(begin + i) * ld + begin + column] = sum;
  }
}

}  // namespace detail

/// inverse = (I + strict)^-1 with zeros above the diagonal; `strict` is strictly lower triangular. Diagonal
/// blocks of 16 by forward substitution, then row by row of blocks: inverse_rc = -inverse_rr (strict_r,:
/// inverse_:,c). `scratch` holds 16 * n elements.
template <class A>
KOKKOS_INLINE_FUNCTION void invert_unit_lower(const TeamMember& team, int n, const A* strict, A* inverse,
                                              std::int64_t ld, A* scratch) {
  constexpr int block = 16;
  for_elements(team, n, n, [=](int i, int j) {
    if (j / block > i / block) inverse[i * ld + j] = A(0);
  });
  KOKKOS_IF_ON_HOST((for (int b = 0; b < n; b += block) detail::invert_block_on_host(
                         b, n - b < block ? n - b : block, strict, inverse, ld);))
  KOKKOS_IF_ON_DEVICE((for_each(team, n, [=](int j) {
                         const int b = j / block * block;
                         detail::invert_column(b, n - b < block ? n - b : block, j - b, strict, inverse, ld);
                       });))
  for (int r = block; r < n; r += block) {
    const int rows = n - r < block ? n - r : block;
    team_gemm(team, as_is, as_is, rows, r, r, A(1), strict + r * ld, ld, inverse, ld, A(0), scratch,
              std::int64_t{r});
    team_gemm(team, as_is, as_is, rows, r, rows, A(-1), inverse + r * ld + r, ld, scratch, std::int64_t{r},
              A(0), inverse + r * ld, ld);
  }
  barrier(team);
}

}  // namespace deltaport::recurrence::portable
