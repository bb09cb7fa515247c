// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace deltaport::testing {

/// Stands in for a device's team: one thread for each lane, so that kernels by groups of lanes (model/packs.hpp) can be
/// checked where there is no device.
class LaneTeam {
 public:
  struct Shared {
    explicit Shared(int lanes) : values(static_cast<std::size_t>(lanes)), meet(lanes) {}
    std::vector<double> values;
    std::barrier<> meet;
  };
  LaneTeam(Shared& shared, std::int64_t group, int lane) : shared_(shared), group_(group), lane_(lane) {}

  std::int64_t league_rank() const { return group_; }
  static int team_size() { return 1; }
  static int team_rank() { return 0; }
  int lane() const { return lane_; }

  /// Folds every lane's value in the order of lanes.
  template <class A, class Fold>
  A folded(A mine, const Fold& fold) const {
    shared_.values[static_cast<std::size_t>(lane_)] = static_cast<double>(mine);
    shared_.meet.arrive_and_wait();
    A all = static_cast<A>(shared_.values[0]);
    for (std::size_t i = 1; i < shared_.values.size(); ++i)
      all = fold(all, static_cast<A>(shared_.values[i]));
    shared_.meet.arrive_and_wait();
    return all;
  }

 private:
  Shared& shared_;
  std::int64_t group_;
  int lane_;
};

inline int lane_of(const LaneTeam& team, int) {
  return team.lane();
}
template <class A>
A group_sum(const LaneTeam& team, int, A mine) {
  return team.folded(mine, [](A a, A b) { return a + b; });
}
template <class A>
A group_min(const LaneTeam& team, int, A mine) {
  return team.folded(mine, [](A a, A b) { return b < a ? b : a; });
}

/// functor(team) for all groups, and for one beyond, as the last block of a device may have.
template <class Functor>
void run_groups(std::int64_t groups, int lanes, const Functor& functor) {
  LaneTeam::Shared shared(lanes);
  std::vector<std::thread> threads;
  for (int lane = 0; lane < lanes; ++lane)
    threads.emplace_back([&, lane] {
      for (std::int64_t group = 0; group <= groups; ++group) functor(LaneTeam(shared, group, lane));
    });
  for (std::thread& thread : threads) thread.join();
}

/// Stands in for a device's block of threads, each a thread here.
class BlockTeam {
 public:
  BlockTeam(LaneTeam::Shared& shared, std::int64_t block, int thread)
      : folds_(shared, block, thread), shared_(shared) {}
  std::int64_t league_rank() const { return folds_.league_rank(); }
  int team_size() const { return static_cast<int>(shared_.values.size()); }
  int team_rank() const { return folds_.lane(); }
  void team_barrier() const { shared_.meet.arrive_and_wait(); }
  const LaneTeam& folds() const { return folds_; }

 private:
  LaneTeam folds_;
  LaneTeam::Shared& shared_;
};

template <class A>
A block_max(const BlockTeam& team, A mine) {
  return team.folds().folded(mine, [](A a, A b) { return b > a ? b : a; });
}
template <class A>
A block_sum(const BlockTeam& team, A mine) {
  return team.folds().folded(mine, [](A a, A b) { return a + b; });
}

/// functor(team) for all blocks.
template <class Functor>
void run_blocks(std::int64_t blocks, int size, const Functor& functor) {
  LaneTeam::Shared shared(size);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < size; ++thread)
    threads.emplace_back([&, thread] {
      for (std::int64_t block = 0; block < blocks; ++block) functor(BlockTeam(shared, block, thread));
    });
  for (std::thread& thread : threads) thread.join();
}

/// functor(i) for i in [0, n).
template <class Functor>
void run_indices(std::int64_t n, const Functor& functor) {
  for (std::int64_t i = 0; i < n; ++i) functor(i);
}

}  // namespace deltaport::testing
