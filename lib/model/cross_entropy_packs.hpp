// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/label.hpp"
#include "deltaport/core/math.hpp"
#include "model/packs.hpp"

namespace deltaport {

/// Largest of every thread's `mine`; all threads of the block get it.
template <class A>
KOKKOS_FORCEINLINE_FUNCTION A block_max(const TeamMember& team, A mine) {
  A most = mine;
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, team.team_size()),
      [&](const int, A& other) { other = mine > other ? mine : other; }, Kokkos::Max<A>(most));
  return most;
}

/// Sum of every thread's `mine`, in a fixed order; all threads of the block get it.
template <class A>
KOKKOS_FORCEINLINE_FUNCTION A block_sum(const TeamMember& team, A mine) {
  A total = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, team.team_size()), [&](const int, A& sum) { sum += mine; }, total);
  return total;
}

/// One row of logits by one block: its loss, and, where `scale` is given, the gradient (softmax - onehot) scale in its
/// place. The row is read once for the sum and its maximum together (Milakov and Gimelshein, "Online normalizer
/// calculation for softmax", 2018) and once for the gradient.
template <class T>
struct PackedCrossEntropy {
  using A = Accumulate<T>;
  static constexpr int threads = 512;
  static constexpr int W = 16 / static_cast<int>(sizeof(T));  // elements of a pack
  std::int64_t vocab;                                         // a multiple of W
  const double* scale;
  const std::int32_t* labels;
  T* logits;
  double* losses;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t r = team.league_rank(), first = static_cast<std::int64_t>(W) * team.team_rank();
    const std::int64_t stride = static_cast<std::int64_t>(W) * team.team_size();
    T* const row = logits + r * vocab;
    const std::int64_t label = labels[r];
    if (label == ignored_label) {
      if (team.team_rank() == 0) losses[r] = 0.0;
      const A zero[W] = {};
      for (std::int64_t i = first; scale != nullptr && i < vocab; i += stride) store_pack(row + i, zero);
      return;
    }
    const bool known = label >= 0 && label < vocab;
    const A target = known ? widen(row[label]) : Kokkos::Experimental::quiet_NaN_v<A>;
    const A lowest = -Kokkos::Experimental::infinity_v<A>;
    A top = lowest, sum = 0;
    for (std::int64_t i = first; i < vocab; i += stride) {
      A x[W];
      load_pack(row + i, x);
      A most = top;
      for (int j = 0; j < W; ++j) most = x[j] > most ? x[j] : most;
      if (most > top) sum *= fast_exp(top - most);
      top = most;
      const A base = top > lowest ? top : A(0);  // -inf - -inf is no number
      for (int j = 0; j < W; ++j) sum += fast_exp(x[j] - base);
    }
    const A shift = block_max(team, top);
    const double total =
        block_sum(team, sum == A(0) ? 0.0 : static_cast<double>(sum * fast_exp(top - shift)));
    if (team.team_rank() == 0)
      losses[r] = Kokkos::log(total) + (static_cast<double>(shift) - static_cast<double>(target));
    if (scale == nullptr) return;
    const A s = static_cast<A>(*scale);
    const A factor = static_cast<A>(static_cast<double>(s) / total), once = known ? s : A(0);
    team.team_barrier();  // `target` has been read
    for (std::int64_t i = first; i < vocab; i += stride) {
      A x[W];
      load_pack(row + i, x);
      for (int j = 0; j < W; ++j) x[j] = fast_exp(x[j] - shift) * factor - (i + j == label ? once : A(0));
      store_pack(row + i, x);
    }
  }
};

}  // namespace deltaport
