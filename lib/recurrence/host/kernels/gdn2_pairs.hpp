// SPDX-License-Identifier: Apache-2.0
// Pairs of tokens in one diagonal block of 16, for GDN2: the decay between two tokens differs from channel to
// channel, so it is carried along, token by token.
#pragma once

#include "recurrence/host/kernels/layout.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

/// Lane l of the result is the sum of all lanes of x[l].
DELTAPORT_HOST_INLINE Vector sums_of(Vector (&x)[width]) {
#pragma GCC unroll 4
  for (int step = 1; step < width; step *= 2) {
    const Integers lane = lanes();
    const Integers second = (lane & step) != 0;
    const Integers own = second ? lane + width : lane;
    const Integers other = second ? (lane ^ step) + width : lane ^ step;
#pragma GCC unroll 16
    for (int i = 0; i < width; i += 2 * step)
      x[i] = shuffle(x[i], x[i + step], own) + shuffle(x[i], x[i + step], other);
  }
  return x[0];
}

/// q_i.(k_j decayed to i) and bk_i.(k_j decayed to i) before the lanes are added up.
struct PairSums {
  Vector asked[token_block][token_block], erased[token_block][token_block];
};

/// Adds `Vectors` vectors of channels. Pointers at the block's first token; rows `keys` apart.
template <int Vectors>
inline void add_pairs(int keys, const float* q, const float* bk, const float* k, const float* step,
                      bool first, PairSums& sums) {
  for (int j = 0; j < token_block; ++j) {
    Vector carried[Vectors];
    Vector asked{};
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      carried[v] = load(k + j * keys + v * width);
      asked += load(q + j * keys + v * width) * carried[v];
    }
    sums.asked[j][j] = first ? asked : sums.asked[j][j] + asked;
    for (int i = j + 1; i < token_block; ++i) {
      Vector asked_here{}, erased_here{};
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const int at = i * keys + v * width;
        carried[v] *= load(step + at);
        asked_here += load(q + at) * carried[v];
        erased_here += load(bk + at) * carried[v];
      }
      sums.asked[i][j] = first ? asked_here : sums.asked[i][j] + asked_here;
      sums.erased[i][j] = first ? erased_here : sums.erased[i][j] + erased_here;
    }
  }
}

/// scores and strict of one diagonal block, rows `chunk` apart.
inline void diagonal_pairs(int keys, const float* q, const float* bk, const float* k, const float* step,
                           float scale, float* scores, float* strict, PairSums& sums) {
  constexpr int group = DELTAPORT_HOST_BYTES == 64 ? 8 : 4;
  int a = 0;
  for (; a + group * width <= keys; a += group * width)
    add_pairs<group>(keys, q + a, bk + a, k + a, step + a, a == 0, sums);
  for (; a < keys; a += width) add_pairs<1>(keys, q + a, bk + a, k + a, step + a, a == 0, sums);
  for (int i = 0; i < token_block; ++i)
    for (int j = 0; j < token_block; j += width) {
      Vector asked[width], erased[width];
#pragma GCC unroll 16
      for (int l = 0; l < width; ++l) {
        asked[l] = j + l <= i ? sums.asked[i][j + l] : Vector{};
        erased[l] = j + l < i ? sums.erased[i][j + l] : Vector{};
      }
      store(scores + i * chunk + j, scale * sums_of(asked));
      store(strict + i * chunk + j, sums_of(erased));
    }
}

/// One diagonal block's rows of the operands and of the gradients; [tokens, keys].
struct DiagonalGradients {
  const float *q, *bk, *k, *step;
  float *dq, *dbk, *dk, *dg;
};

/// Adjoint of the above: upper and lower are the gradients of q_i.(k_j ..) and bk_i.(k_j ..), rows `chunk`
/// apart. Adds to dq, dbk, dk, dg.
inline void diagonal_gradients(int keys, const float* upper, const float* lower, const DiagonalGradients& x) {
  for (int a = 0; a < keys; a += width) {
    Vector dq[token_block], dbk[token_block], dg[token_block];
    for (int i = 0; i < token_block; ++i) {
      dq[i] = load(x.dq + i * keys + a);
      dbk[i] = load(x.dbk + i * keys + a);
      dg[i] = load(x.dg + i * keys + a);
    }
#pragma GCC unroll 16
    for (int j = 0; j < token_block; ++j) {
      Vector carried[token_block];
      carried[j] = load(x.k + j * keys + a);
      dq[j] += upper[j * chunk + j] * carried[j];
#pragma GCC unroll 16
      for (int i = j + 1; i < token_block; ++i) {
        carried[i] = carried[i - 1] * load(x.step + i * keys + a);
        dq[i] += upper[i * chunk + j] * carried[i];
        dbk[i] += lower[i * chunk + j] * carried[i];
      }
      Vector back{};
#pragma GCC unroll 16
      for (int i = token_block - 1; i > j; --i) {
        back += upper[i * chunk + j] * load(x.q + i * keys + a) +
                lower[i * chunk + j] * load(x.bk + i * keys + a);
        dg[i] += back * carried[i];
        back *= load(x.step + i * keys + a);
      }
      float* dk = x.dk + j * keys + a;
      store(dk, load(dk) + (back + upper[j * chunk + j] * load(x.q + j * keys + a)));
    }
    for (int i = 0; i < token_block; ++i) {
      store(x.dq + i * keys + a, dq[i]);
      store(x.dbk + i * keys + a, dbk[i]);
      store(x.dg + i * keys + a, dg[i]);
    }
  }
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
