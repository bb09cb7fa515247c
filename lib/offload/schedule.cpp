// SPDX-License-Identifier: Apache-2.0
#include "deltaport/offload/schedule.hpp"

#include <algorithm>
#include <cmath>

#include "deltaport/core/error.hpp"

namespace deltaport::offload {

std::int64_t moved_groups(std::int64_t eligible, double fraction) {
  // 0.9 is no binary number: 10 * (1 - 0.9) is a little less than 1, and truncating it would move one group too many.
  constexpr std::int64_t whole = 1000000000;
  const std::int64_t parts = std::llround(fraction * static_cast<double>(whole));
  return (eligible * parts + whole - 1) / whole;
}

std::size_t Schedule::Planned::moved_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; moves && i < shape.bytes.size(); ++i)
    if (!shared[i]) bytes += shape.bytes[i];
  return bytes;
}

Schedule::Schedule(const ScheduleRules& rules) : rules_(rules) {
  DELTAPORT_VALIDATE(rules.fraction >= 0.0 && rules.fraction <= 1.0, ConfigError,
                     "offload: fraction = ", rules.fraction, " must be in [0, 1]");
  DELTAPORT_VALIDATE(rules.keep_last >= 0, ConfigError, "offload: keep_last = ", rules.keep_last,
                     " must not be negative");
  DELTAPORT_VALIDATE(rules.slots >= 1, ConfigError, "offload: slots = ", rules.slots, " must be at least 1");
}

GroupDecision Schedule::next(const GroupShape& shape) {
  const std::size_t position = pass_.size();
  const bool planned = position < plan_.size() && plan_[position].shape == shape;
  follows_plan_ &= planned;
  const std::vector<bool> shared = planned ? plan_[position].shared : std::vector<bool>(shape.bytes.size());
  pass_.push_back({shape, shared, planned ? plan_[position].moves : rules_.fraction > 0.0});
  return {pass_.back().moves, shared};
}

void Schedule::is_shared(std::size_t position, std::size_t block) {
  pass_.at(position).shared.at(block) = true;
  found_shared_ = true;
}

bool Schedule::end_forward() {
  const bool changed = !follows_plan_ || found_shared_ || pass_.size() != plan_.size();
  if (changed) {
    plan_ = pass_;
    // The last ones would still wait for their copies when backward asks for them: moving them frees nothing.
    const std::size_t movable = plan_.size() - std::min(plan_.size(), rules_.staying());
    std::vector<Planned*> eligible;
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      plan_[i].moves = false;
      const bool frees = std::ranges::find(plan_[i].shared, false) != plan_[i].shared.end();
      if (i < movable && frees) eligible.push_back(&plan_[i]);
    }
    eligible.resize(
        static_cast<std::size_t>(moved_groups(static_cast<std::int64_t>(eligible.size()), rules_.fraction)));
    for (Planned* group : eligible) group->moves = true;
  }
  forget();
  return changed;
}

void Schedule::forget() {
  pass_.clear();
  follows_plan_ = true;
  found_shared_ = false;
}

}  // namespace deltaport::offload
