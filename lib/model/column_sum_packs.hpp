// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/packs.hpp"

namespace deltaport {

/// One pack of columns of one slab of rows by one group of lanes, each of which takes every 32nd row: writes the slab's sums
/// to its row of `sums`, or adds those of the only slab to it.
template <class A>
struct PackedColumnSum {
  static constexpr int lanes = 32, W = 4;
  static constexpr std::int64_t slab_rows = 512;  ///< more than two of them are summed apart
  enum class Sums { write, add };
  std::int64_t rows, columns, slab;
  const A* partial;
  A* sums;  // [slabs, columns]
  Sums how;

  std::int64_t slabs() const { return (rows + slab - 1) / slab; }
  std::int64_t groups() const { return slabs() * (columns / W); }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t packs = columns / W, at = group_of(team) / packs;
    const std::int64_t c = (group_of(team) - at * packs) * W, begin = at * slab;
    if (begin >= rows) return;
    const std::int64_t end = begin + slab < rows ? begin + slab : rows;
    A sum[W] = {};
    const int lane = lane_of(team, lanes);
    for (std::int64_t r = begin + lane; r < end; r += lanes) {
      A v[W];
      load_pack(partial + r * columns + c, v);
      for (int j = 0; j < W; ++j) sum[j] += v[j];
    }
    A* const target = sums + at * columns + c;
    for (int j = 0; j < W; ++j) {
      const A total = group_sum(team, lanes, sum[j]);
      if (lane == j) target[j] = how == Sums::add ? target[j] + total : total;
    }
  }
};

}  // namespace deltaport
