// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "deltaport/offload/transfer_queue.hpp"

namespace deltaport::offload {

/// Passes once.
class HostEvent : public Event {
 public:
  void pass();
  bool query() const override;
  void wait() const override;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool passed_ = false;
};

/// What tests put into a lane.
struct LaneHooks {
  /// Called in the lane's thread before each piece of work, after its events have passed.
  std::function<void()> before;
  /// Given the number of pieces whose events have passed, says which of them comes next, so that pieces that nothing
  /// orders finish in another order than they were enqueued. Empty: always the one enqueued first, as in a stream.
  std::function<std::size_t(std::size_t)> pick;
};

/// A thread that does one piece of work after the other. Work must not throw.
class HostLane {
 public:
  explicit HostLane(LaneHooks hooks = {});
  /// Does what is enqueued first.
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  /// `work` starts after the events of `after`; the result passes when it is done. From any thread.
  EventPtr enqueue(std::vector<EventPtr> after, std::function<void()> work);
  /// Returns when nothing is enqueued or under way.
  void drain();
  /// Seconds that work has taken since the last call.
  double take_seconds();

 private:
  struct Task {
    std::vector<EventPtr> after;
    std::function<void()> work;
    std::shared_ptr<HostEvent> done;
  };
  void run();
  Task next(std::unique_lock<std::mutex>& lock);

  LaneHooks hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  double seconds_ = 0.0;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace deltaport::offload
