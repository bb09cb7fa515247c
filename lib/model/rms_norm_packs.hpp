// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/column_sum.hpp"
#include "model/packs.hpp"

namespace deltaport {

/// One row by one group of 32 lanes: optional residual addition, reciprocal root, scaled output.
template <class T>
struct PackedNormRow {
  using A = Accumulate<T>;
  static constexpr int lanes = 32, W = pack_width;
  std::int64_t rows, size;
  A eps;
  const T* x;
  const T* delta;  // nullptr: no residual
  const T* weight;
  T* sum;  // written only with delta
  T* y;
  A* rstd;  // nullptr in evaluation

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t row = group_of(team);
    if (row >= rows) return;
    const int first = lane_of(team, lanes) * W;
    const std::int64_t at = row * size;
    A mine = 0;
    for (std::int64_t c = first; c < size; c += lanes * W) {
      A v[W];
      load_pack(x + at + c, v);
      if (delta != nullptr) {
        A d[W];
        load_pack(delta + at + c, d);
        for (int j = 0; j < W; ++j) v[j] = widen(static_cast<T>(v[j] + d[j]));
        store_pack(sum + at + c, v);
      }
      for (int j = 0; j < W; ++j) mine += v[j] * v[j];
    }
    const A scale = A(1) / Kokkos::sqrt(group_sum(team, lanes, mine) / static_cast<A>(size) + eps);
    const T* in = delta != nullptr ? sum : x;
    for (std::int64_t c = first; c < size; c += lanes * W) {
      A v[W], w[W];
      load_pack(in + at + c, v);
      load_pack(weight + c, w);
      for (int j = 0; j < W; ++j) v[j] *= scale * (A(1) + w[j]);
      store_pack(y + at + c, v);
    }
    if (rstd != nullptr && first == 0) rstd[row] = scale;
  }
};

/// dx of one row by one group of 32 lanes; see norm_row_backward().
template <class T>
struct PackedNormBackward {
  using A = Accumulate<T>;
  static constexpr int lanes = 32, W = pack_width;
  std::int64_t rows, size;
  const T* x;
  const A* rstd;
  const T* weight;
  const T* dy;
  const T* d_residual;  // nullptr: no residual path
  T* dx;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t row = group_of(team);
    if (row >= rows) return;
    const int first = lane_of(team, lanes) * W;
    const std::int64_t at = row * size;
    const A scale = rstd[row];
    A mine = 0;
    for (std::int64_t c = first; c < size; c += lanes * W) {
      A v[W], w[W], d[W];
      load_pack(x + at + c, v);
      load_pack(weight + c, w);
      load_pack(dy + at + c, d);
      for (int j = 0; j < W; ++j) mine += d[j] * (A(1) + w[j]) * v[j];
    }
    const A slope = group_sum(team, lanes, mine) * scale * scale / static_cast<A>(size);
    for (std::int64_t c = first; c < size; c += lanes * W) {
      A v[W], w[W], d[W];
      load_pack(x + at + c, v);
      load_pack(weight + c, w);
      load_pack(dy + at + c, d);
      for (int j = 0; j < W; ++j) d[j] = scale * (d[j] * (A(1) + w[j]) - v[j] * slope);
      if (d_residual != nullptr) {
        load_pack(d_residual + at + c, v);
        for (int j = 0; j < W; ++j) d[j] += v[j];
      }
      store_pack(dx + at + c, d);
    }
  }
};

/// A block of rows' share of dw: each lane takes one pack of columns.
template <class T>
struct PackedNormWeightShare {
  using A = Accumulate<T>;
  static constexpr int lanes = 32, W = pack_width;
  std::int64_t rows, size;
  const T* x;
  const A* rstd;
  const T* dy;
  A* partial;  // [blocks, size]

  std::int64_t groups() const { return gradient_blocks(rows) * strips(); }
  KOKKOS_FUNCTION std::int64_t strips() const { return (size + lanes * W - 1) / (lanes * W); }
  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t block = group_of(team) / strips();
    const std::int64_t c = (group_of(team) % strips() * lanes + lane_of(team, lanes)) * W;
    const std::int64_t begin = block * gradient_block_rows;
    if (begin >= rows || c >= size) return;
    const std::int64_t end = begin + gradient_block_rows < rows ? begin + gradient_block_rows : rows;
    A sums[W] = {};
    for (std::int64_t row = begin; row < end; ++row) {
      A v[W], d[W];
      load_pack(x + row * size + c, v);
      load_pack(dy + row * size + c, d);
      const A scale = rstd[row];
      for (int j = 0; j < W; ++j) sums[j] += d[j] * (v[j] * scale);
    }
    store_pack(partial + block * size + c, sums);
  }
};

/// x += delta, one pack.
template <class T>
struct PackedAddInPlace {
  T* x;
  const T* delta;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    Accumulate<T> a[pack_width], b[pack_width];
    load_pack(x + i * pack_width, a);
    load_pack(delta + i * pack_width, b);
    for (int j = 0; j < pack_width; ++j) a[j] += b[j];
    store_pack(x + i * pack_width, a);
  }
};

}  // namespace deltaport
