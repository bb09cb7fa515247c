// SPDX-License-Identifier: Apache-2.0
// Solves with I + A, A strictly lower triangular [rows, rows] with rows `chunk` apart; rows a multiple of 16.
#pragma once

#include "recurrence/host/kernels/product.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

constexpr int solve_block = DELTAPORT_HOST_BYTES == 64 ? 16 : 8;  // as many vectors as registers hold

/// x <- (I + a)^-1 x for one block and one vector of columns.
inline void solve_diagonal(const float* a, float* x, Index ldx) {
  Vector r[solve_block];
#pragma GCC unroll 16
  for (int i = 0; i < solve_block; ++i) r[i] = load(x + i * ldx);
#pragma GCC unroll 16
  for (int j = 0; j < solve_block; ++j)
#pragma GCC unroll 16
    for (int i = j + 1; i < solve_block; ++i) r[i] -= a[i * chunk + j] * r[j];
#pragma GCC unroll 16
  for (int i = 0; i < solve_block; ++i) store(x + i * ldx, r[i]);
}
/// x <- (I + a)^-T x
inline void solve_diagonal_turned(const float* a, float* x, Index ldx) {
  Vector r[solve_block];
#pragma GCC unroll 16
  for (int i = 0; i < solve_block; ++i) r[i] = load(x + i * ldx);
#pragma GCC unroll 16
  for (int j = solve_block - 1; j > 0; --j)
#pragma GCC unroll 16
    for (int i = 0; i < j; ++i) r[i] -= a[j * chunk + i] * r[j];
#pragma GCC unroll 16
  for (int i = 0; i < solve_block; ++i) store(x + i * ldx, r[i]);
}

/// x <- (I + a)^-1 x, x [rows, columns] with rows ldx apart.
inline void solve(int rows, int columns, const float* a, float* x, Index ldx) {
  for (int b = 0; b < rows; b += solve_block) {
    float* here = x + b * ldx;
    if (b > 0)
      product(
          solve_block, columns,
          [=](int i, int j, Vector sum) { store(here + i * ldx + j, load(here + i * ldx + j) - sum); },
          plain(a + b * chunk, chunk, x, ldx, All{b}));
    for (int j = 0; j < columns; j += width) solve_diagonal(a + b * chunk + b, here + j, ldx);
  }
}
/// x <- (I + a)^-T x
inline void solve_turned(int rows, int columns, const float* a, float* x, Index ldx) {
  for (int b = rows - solve_block; b >= 0; b -= solve_block) {
    float* here = x + b * ldx;
    const int after = b + solve_block;
    if (after < rows)
      product(
          solve_block, columns,
          [=](int i, int j, Vector sum) { store(here + i * ldx + j, load(here + i * ldx + j) - sum); },
          turned(a + after * chunk + b, chunk, x + after * ldx, ldx, All{rows - after}));
    for (int j = 0; j < columns; j += width) solve_diagonal_turned(a + b * chunk + b, here + j, ldx);
  }
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
