// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

#include "deltaport/core/runtime.hpp"

namespace deltaport::app {

/// Takes the time of one call.
class Timer {
 public:
  virtual ~Timer() = default;
  /// Seconds that `work` takes, with what it enqueued to the runtime's compute stream.
  virtual double seconds(Runtime& runtime, const std::function<void()>& work) = 0;
};

/// The clock on the wall, between two fences.
class WallTimer : public Timer {
 public:
  double seconds(Runtime& runtime, const std::function<void()>& work) override {
    runtime.fence("deltaport: before the clock starts");
    const auto start = std::chrono::steady_clock::now();
    work();
    runtime.fence("deltaport: before the clock stops");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

/// Processor time of all threads, over their number: what a busy machine would need if it were quiet, as long
/// as all threads have work all the time.
class ProcessorTimer : public Timer {
 public:
  double seconds(Runtime& runtime, const std::function<void()>& work) override {
    const double start = now();
    work();
    runtime.fence("deltaport: before the clock stops");
    return (now() - start) / runtime.compute().concurrency();
  }

 private:
  static double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
};

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}
inline double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

}  // namespace deltaport::app
