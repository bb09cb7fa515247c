// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deltaport::offload {

struct ScheduleRules {
  /// Share of the eligible groups that move, those saved first. Nine decimal digits count; counted exactly.
  double fraction = 1.0;
  /// Groups that were saved last and stay, for backward asks for them first; 0: as many as `slots`. Fewer than `slots` makes
  /// backward begin with a wait for copies that are still under way.
  std::int64_t keep_last = 0;
  /// Groups whose device memory waits for its copy to finish, beside the one being computed.
  std::int64_t slots = 2;

  std::size_t staying() const { return static_cast<std::size_t>(keep_last > 0 ? keep_last : slots); }
};

/// What tells one group from another: its scope, and the bytes of each of its memory blocks that could move.
struct GroupShape {
  std::string scope;
  std::vector<std::size_t> bytes;
  bool operator==(const GroupShape&) const = default;
};

struct GroupDecision {
  bool moves = false;
  std::vector<bool> shared;  ///< blocks that somebody else keeps: they stay. Empty: none is known to be
};

/// Which of the groups of a forward pass move. The first pass (of training: others save nothing) is a warm-up: it moves
/// every group, as nobody knows yet which ones are the last, and what it saw becomes the plan. Later passes follow the
/// plan; when one saves other groups than planned (other shapes, more or fewer layers), the rest of it is a warm-up
/// again. Groups without blocks must not be given. Logic only.
class Schedule {
 public:
  /// Throws ConfigError for a fraction outside [0, 1], negative counts and fewer than one slot.
  explicit Schedule(const ScheduleRules& rules);

  /// The next group of this pass, in the order of their commits.
  GroupDecision next(const GroupShape& shape);
  /// A block of group `position` (of this pass) turned out to be kept by somebody else: moving it frees nothing. From
  /// the next pass on it stays.
  void is_shared(std::size_t position, std::size_t block);
  /// All groups of this pass were given. True when the plan is new.
  bool end_forward();
  /// This pass had no backward: as if it had not been.
  void forget();

  struct Planned {
    GroupShape shape;
    std::vector<bool> shared;
    bool moves = false;
    bool eligible = false;  ///< could move: is not one of the last, and frees memory
    /// Bytes that move.
    std::size_t moved_bytes() const;
    /// Host memory that it needs where it moves: its blocks in whole lines.
    std::size_t host_bytes() const;
  };
  /// In the order of their commits; empty before the first pass is over.
  const std::vector<Planned>& plan() const { return plan_; }
  /// Whether all groups of this pass were the planned ones so far.
  bool follows_plan() const { return follows_plan_ && !plan_.empty(); }
  /// Host memory of the plan's groups that would move with this fraction; of those that move.
  std::size_t host_bytes(double fraction) const;
  std::size_t host_bytes() const;
  /// The largest fraction of two decimals, at most that of the rules, with which the groups that move fit in `limit`
  /// bytes and are at least one; 0 when there is none.
  double fraction_within(std::size_t limit) const;
  /// Why the plan moves nothing; empty when it moves something.
  std::string why_nothing_moves() const;
  /// Groups given so far in this pass.
  std::size_t position() const { return pass_.size(); }

 private:
  ScheduleRules rules_;
  std::vector<Planned> plan_, pass_;
  bool follows_plan_ = true;  // so far in this pass
  bool found_shared_ = false;
};

/// Copies start and end at whole lines of this many bytes, as the arena's blocks do.
constexpr std::size_t line_bytes = 256;
constexpr std::size_t whole_lines(std::size_t bytes) {
  return (bytes + line_bytes - 1) / line_bytes * line_bytes;
}

/// Of `eligible` groups, how many move: the least whole number that is at least fraction times them, exactly.
std::int64_t moved_groups(std::int64_t eligible, double fraction);

}  // namespace deltaport::offload
