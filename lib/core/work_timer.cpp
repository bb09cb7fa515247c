// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/work_timer.hpp"

namespace deltaport {

std::string_view name_of(Work kind) {
  switch (kind) {
    case Work::gemm:
      return "gemm";
    case Work::recurrence:
      return "recurrence";
    case Work::attention:
      return "attention";
    case Work::loss:
      return "loss";
    case Work::elementwise:
      return "element-wise";
    case Work::optimizer:
      return "optimizer";
    case Work::communication:
      return "communication";
    case Work::data:
      return "data";
    default:
      return "other";
  }
}

void WorkTimer::enable(bool on) {
  enabled_ = on;
  stack_.clear();
  reset();
}

void WorkTimer::reset() {
  seconds_.fill(0.0);
  if (enabled_) exec_->fence("deltaport: timer reset");
  last_ = std::chrono::steady_clock::now();
}

void WorkTimer::charge() {
  require_not_recording("deltaport: timed region", "the work timer waits for the stream; switch it off");
  exec_->fence("deltaport: timed region");
  const auto now = std::chrono::steady_clock::now();
  const Work kind = stack_.empty() ? Work::other : stack_.back();
  seconds_[static_cast<std::size_t>(kind)] += std::chrono::duration<double>(now - last_).count();
  last_ = now;
}

void WorkTimer::push(Work kind) {
  if (!enabled_) return;
  charge();
  stack_.push_back(kind);
}

void WorkTimer::pop() {
  if (!enabled_ || stack_.empty()) return;
  charge();
  stack_.pop_back();
}

}  // namespace deltaport
