// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/packs.hpp"

namespace deltaport {

/// The tokens with the same id, as chains in ascending order, found by comparing each with all: as much work as
/// T^2 comparisons, which is little beside the rows that are moved, and no sort.
struct LinkEqualTokens {
  static constexpr int lanes = 32;
  std::int64_t count, vocab;
  const std::int32_t* tokens;
  std::int32_t* next;  // [2, T]: next token with this id, or -1; then whether it is the first one

  /// One token by one group of lanes, which look at 32 others at a time.
  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t t = group_of(team);
    if (t >= count) return;
    const std::int32_t id = tokens[t];
    const int lane = lane_of(team, lanes);
    std::int32_t begins = id >= 0 && id < vocab ? 1 : 0;
    for (std::int64_t u = lane; u < t; u += lanes)
      if (tokens[u] == id) begins = 0;
    std::int64_t nearest = count;
    for (std::int64_t u = t + 1 + lane; u < count && nearest == count; u += lanes)
      if (tokens[u] == id) nearest = u;
    nearest = group_min(team, lanes, nearest);
    begins = group_min(team, lanes, begins);
    if (lane == 0) {
      next[t] = nearest < count ? static_cast<std::int32_t>(nearest) : -1;
      next[count + t] = begins;
    }
  }
};

/// gradient[id] += the rows of dy of the chain that begins with a token, in ascending order. One pack.
template <class T>
struct AddChains {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  std::int64_t count, hidden;
  const std::int32_t* tokens;
  const std::int32_t* next;  // and, from `count` on, whether a chain begins
  const T* dy;
  A* gradient;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t t = i * W / hidden, c = i * W - t * hidden;
    if (next[count + t] == 0) return;
    A* const to = gradient + static_cast<std::int64_t>(tokens[t]) * hidden + c;
    A sum[W];
    load_pack(to, sum);
    for (std::int64_t u = t; u >= 0; u = next[u]) {
      A d[W];
      load_pack(dy + u * hidden + c, d);
      for (int j = 0; j < W; ++j) sum[j] += d[j];
    }
    store_pack(to, sum);
  }
};

/// One row gathered, one pack; ids outside of the vocabulary give NaN.
template <class T>
struct GatherPacks {
  static constexpr int W = pack_width;
  std::int64_t vocab, hidden;
  const std::int32_t* tokens;
  const T* table;
  T* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t t = i * W / hidden, c = i * W - t * hidden, id = tokens[t];
    Accumulate<T> v[W];
    if (id >= 0 && id < vocab)
      load_pack(table + id * hidden + c, v);
    else
      for (int j = 0; j < W; ++j) v[j] = Kokkos::Experimental::quiet_NaN_v<Accumulate<T>>;
    store_pack(y + i * W, v);
  }
};

}  // namespace deltaport
