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

std::size_t Schedule::Planned::host_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < shape.bytes.size(); ++i)
    if (!shared[i]) bytes += whole_lines(shape.bytes[i]);
  return bytes;
}

std::size_t Schedule::host_bytes(double fraction) const {
  std::int64_t left = moved_groups(std::ranges::count(plan_, true, &Planned::eligible), fraction);
  std::size_t bytes = 0;
  for (auto group = plan_.begin(); left > 0; ++group) {
    if (!group->eligible) continue;
    bytes += group->host_bytes();
    --left;
  }
  return bytes;
}

std::size_t Schedule::host_bytes() const {
  return host_bytes(rules_.fraction);
}

double Schedule::fraction_within(std::size_t limit) const {
  for (int percent = 100; percent > 0; --percent) {
    const double fraction = percent / 100.0;
    if (fraction > rules_.fraction) continue;
    const std::size_t bytes = host_bytes(fraction);
    if (bytes > 0 && bytes <= limit) return fraction;
  }
  return 0.0;
}

std::string Schedule::why_nothing_moves() const {
  if (host_bytes() > 0) return {};
  if (plan_.empty()) return "no tensor in its scopes has offload.min_tensor_elements elements";
  const auto eligible = std::ranges::count(plan_, true, &Planned::eligible);
  if (eligible > 0)
    return concat("offload.fraction = ", rules_.fraction, " of the ", eligible, " groups that could is none");
  if (plan_.size() > rules_.staying())
    return concat("all but the last ", rules_.staying(), " of ", plan_.size(),
                  " groups are kept on the device by somebody else");
  return concat("all ", plan_.size(), " groups of a forward stay, because the last ", rules_.staying(),
                " always do (offload.keep_last, offload.slots)");
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
      plan_[i].moves = plan_[i].eligible = false;
      const bool frees = std::ranges::find(plan_[i].shared, false) != plan_[i].shared.end();
      if (i >= movable || !frees) continue;
      plan_[i].eligible = true;
      eligible.push_back(&plan_[i]);
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
