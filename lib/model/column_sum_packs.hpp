// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/packs.hpp"

namespace deltaport {

/// One pack of columns by one group of lanes, each of which takes every 32nd row.
template <class A>
struct PackedColumnSum {
  static constexpr int lanes = 32, W = 4;
  std::int64_t rows, columns;
  const A* partial;
  A* target;
  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t c = group_of(team) * W;
    if (c >= columns) return;
    A sum[W] = {};
    const int lane = lane_of(team, lanes);
    for (std::int64_t r = lane; r < rows; r += lanes) {
      A v[W];
      load_pack(partial + r * columns + c, v);
      for (int j = 0; j < W; ++j) sum[j] += v[j];
    }
    for (int j = 0; j < W; ++j) {
      const A total = group_sum(team, lanes, sum[j]);
      if (lane == j) target[c + j] += total;
    }
  }
};

}  // namespace deltaport
