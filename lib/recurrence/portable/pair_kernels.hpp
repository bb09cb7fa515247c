// SPDX-License-Identifier: Apache-2.0
// GDN2 pairs inside one diagonal block of up to 16 tokens: for every channel, decays between tokens are
// products of the steps between them, carried along. Plain loops over `Lanes` channels, which the compiler
// turns into vectors; one lane is what a device thread runs. Like core/tile_kernel.hpp it includes nothing,
// because hosts compile it once per instruction set. The including file defines DELTAPORT_PAIR_FUNCTION
// (function attributes).
//
// Pointers point at the first token and channel; rows are `ld` apart.

constexpr int diagonal_block = 16;

/// scores[i][j] = scale q_i.(k_j decayed to i) for i >= j, strict[i][j] = bk_i.(k_j decayed to i) for i > j;
/// zero above. scores and strict have rows `ldp` apart. `carried` holds `dim` elements.
template <class T>
DELTAPORT_PAIR_FUNCTION void diagonal_scores(int rows, int dim, long long ld, const T* q, const T* bk,
                                             const T* k, const T* step, T scale, T* scores, T* strict,
                                             long long ldp, T* carried) {
  constexpr int lanes = 16;
  for (int j = 0; j < rows; ++j) {
    for (int i = 0; i < j; ++i) scores[i * ldp + j] = T(0);
    for (int i = 0; i <= j; ++i) strict[i * ldp + j] = T(0);
    for (int d = 0; d < dim; ++d) carried[d] = k[j * ld + d];
    for (int i = j; i < rows; ++i) {
      const T* q_row = q + i * ld;
      const T* bk_row = bk + i * ld;
      const T* step_row = step + i * ld;
      T asked[lanes] = {}, erased[lanes] = {};
      int d = 0;
      if (i == j) {
        for (; d + lanes <= dim; d += lanes)
          for (int l = 0; l < lanes; ++l) asked[l] += q_row[d + l] * carried[d + l];
        for (int l = 0; d + l < dim; ++l) asked[l] += q_row[d + l] * carried[d + l];
      } else {
        for (; d + lanes <= dim; d += lanes)
          for (int l = 0; l < lanes; ++l) {
            const T x = carried[d + l] * step_row[d + l];
            carried[d + l] = x;
            asked[l] += q_row[d + l] * x;
            erased[l] += bk_row[d + l] * x;
          }
        for (int l = 0; d + l < dim; ++l) {
          const T x = carried[d + l] * step_row[d + l];
          carried[d + l] = x;
          asked[l] += q_row[d + l] * x;
          erased[l] += bk_row[d + l] * x;
        }
      }
      for (int half = lanes / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) {
          asked[l] += asked[l + half];
          erased[l] += erased[l + half];
        }
      scores[i * ldp + j] = scale * asked[0];
      if (i > j) strict[i * ldp + j] = erased[0];
    }
  }
}

/// Adjoint of the above for Lanes channels: upper and lower are the gradients of scores (scale included) and
/// of strict. Adds to dq, dbk, dk (as a column) and dg.
template <class T, int Lanes>
DELTAPORT_PAIR_FUNCTION void diagonal_gradients(int rows, long long ld, const T* q, const T* bk, const T* k,
                                                const T* step, const T* upper, const T* lower, long long ldp,
                                                T* dq, T* dbk, T* dk, T* dg) {
  for (int j = 0; j < rows; ++j) {
    T carried[diagonal_block][Lanes];
    for (int l = 0; l < Lanes; ++l) {
      carried[j][l] = k[j * ld + l];
      dq[j * ld + l] += upper[j * ldp + j] * carried[j][l];
    }
    for (int i = j + 1; i < rows; ++i) {
      const T a = upper[i * ldp + j], b = lower[i * ldp + j];
      for (int l = 0; l < Lanes; ++l) {
        const T x = carried[i - 1][l] * step[i * ld + l];
        carried[i][l] = x;
        dq[i * ld + l] += a * x;
        dbk[i * ld + l] += b * x;
      }
    }
    T back[Lanes] = {};
    for (int i = rows - 1; i > j; --i) {
      const T a = upper[i * ldp + j], b = lower[i * ldp + j];
      for (int l = 0; l < Lanes; ++l) {
        const T sum = back[l] + a * q[i * ld + l] + b * bk[i * ld + l];
        dg[i * ld + l] += sum * carried[i][l];
        back[l] = sum * step[i * ld + l];
      }
    }
    for (int l = 0; l < Lanes; ++l) dk[j * ld + l] += back[l] + upper[j * ldp + j] * q[j * ld + l];
  }
}
