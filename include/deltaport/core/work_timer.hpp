// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

#include "deltaport/core/tensor.hpp"

namespace deltaport {

/// What a stretch of a training step is spent on.
enum class Work { gemm, recurrence, attention, loss, elementwise, optimizer, communication, data, other };
inline constexpr std::size_t work_kinds = 9;
std::string_view name_of(Work kind);

/// Splits wall time by kind of work. Off by default and then free. On, every change of kind fences the
/// compute stream, so device time is attributed exactly: for benchmarks only. Scopes nest; time belongs to
/// the innermost one.
class WorkTimer {
 public:
  explicit WorkTimer(const ExecutionSpace& exec) : exec_(&exec) {}
  void enable(bool on);
  bool enabled() const { return enabled_; }
  void reset();
  /// Seconds since reset(), by kind.
  const std::array<double, work_kinds>& seconds() const { return seconds_; }

  void push(Work kind);
  void pop();

 private:
  void charge();
  const ExecutionSpace* exec_;
  bool enabled_ = false;
  std::array<double, work_kinds> seconds_{};
  std::vector<Work> stack_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace deltaport
