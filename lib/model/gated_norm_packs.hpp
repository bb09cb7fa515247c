// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/math.hpp"
#include "model/packs.hpp"

namespace deltaport {

/// One (token, head) by one group of lanes, the whole row in registers. Rows of at most lanes * pack_width.
template <class T>
struct PackedGatedNorm {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  int lanes;
  std::int64_t rows, heads, width;
  const T* x;
  const T* z;
  std::int64_t z_stride;
  const A* weight;
  A eps;
  T* y;
  A* rstd;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t row = group_of(team);
    if (row >= rows) return;
    const int c = lane_of(team, lanes) * W;
    const bool inside = c < width;
    const T* gate = z + row / heads * z_stride + row % heads * width;
    A v[W] = {}, g[W] = {}, w[W] = {}, mine = 0;
    if (inside) {
      load_pack(x + row * width + c, v);
      load_pack(gate + c, g);
      load_pack(weight + c, w);
    }
    for (int j = 0; j < W; ++j) mine += v[j] * v[j];
    const A inverse = A(1) / Kokkos::sqrt(group_sum(team, lanes, mine) / static_cast<A>(width) + eps);
    if (!inside) return;
    for (int j = 0; j < W; ++j) v[j] = w[j] * (v[j] * inverse) * silu(g[j]);
    store_pack(y + row * width + c, v);
    if (c == 0) rstd[row] = inverse;
  }
};

/// A block of rows by one group of lanes, which keeps the block's part of the weight gradient in registers.
template <class T>
struct PackedGatedNormBackward {
  using A = Accumulate<T>;
  static constexpr int W = pack_width, block_rows = 8;
  int lanes;
  std::int64_t rows, heads, width;
  const T* x;
  const T* z;
  std::int64_t z_stride;
  const A* weight;
  const A* rstd;
  const T* dy;
  T* dx;
  T* dz;
  std::int64_t dz_stride;
  T* y;        // nullptr: not wanted
  A* partial;  // [blocks, width]

  std::int64_t blocks() const { return (rows + block_rows - 1) / block_rows; }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t begin = group_of(team) * block_rows;
    if (begin >= rows) return;
    const std::int64_t end = begin + block_rows < rows ? begin + block_rows : rows;
    const int c = lane_of(team, lanes) * W;
    A w[W] = {}, sums[W] = {};
    if (c < width) load_pack(weight + c, w);
    for (std::int64_t row = begin; row < end; ++row) one_row(team, row, c, w, sums);
    if (c < width) store_pack(partial + group_of(team) * width + c, sums);
  }

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void one_row(const Team& team, std::int64_t row, int c, const A (&w)[W],
                                           A (&sums)[W]) const {
    const bool inside = c < width;
    const std::int64_t at = row * width + c, token = row / heads, column = row % heads * width + c;
    A unit[W] = {}, g[W] = {}, d[W] = {}, mine = 0;
    if (inside) {
      load_pack(x + at, unit);
      load_pack(z + token * z_stride + column, g);
      load_pack(dy + at, d);
    }
    const A inverse = rstd[row];
    A out[W];
    for (int j = 0; j < W; ++j) {
      unit[j] *= inverse;
      const A s = sigmoid(g[j]), open = g[j] * s, wd = w[j] * d[j];
      sums[j] += d[j] * unit[j] * open;
      out[j] = w[j] * unit[j] * open;
      g[j] = wd * unit[j] * (s * (A(1) + g[j] * (A(1) - s)));
      d[j] = wd * open;
      mine += d[j] * unit[j];
    }
    const A mean = group_sum(team, lanes, mine) / static_cast<A>(width);
    if (!inside) return;
    store_pack(dz + token * dz_stride + column, g);
    if (y != nullptr) store_pack(y + at, out);
    for (int j = 0; j < W; ++j) d[j] = inverse * (d[j] - unit[j] * mean);
    store_pack(dx + at, d);
  }
};

}  // namespace deltaport
