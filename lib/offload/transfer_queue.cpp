// SPDX-License-Identifier: Apache-2.0
#include "deltaport/offload/transfer_queue.hpp"

#include <mutex>
#include <utility>

#include "deltaport/core/enqueue.hpp"

namespace deltaport::offload {
namespace {

/// Stands for an event that each replay makes anew.
class LatestEvent : public Event {
 public:
  explicit LatestEvent(Direction of) : of_(of) {}
  Direction of() const { return of_; }
  void set(EventPtr event) {
    const std::lock_guard lock(mutex_);
    latest_ = std::move(event);
  }
  EventPtr get() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }
  bool query() const override {
    const EventPtr event = get();
    return event == nullptr || event->query();
  }
  void wait() const override {
    if (const EventPtr event = get()) event->wait();
  }

 private:
  mutable std::mutex mutex_;
  EventPtr latest_;  // nullptr: has passed
  Direction of_;     // for events of copies
};

EventPtr latest(const EventPtr& event) {
  return event == nullptr ? nullptr : static_cast<const LatestEvent&>(*event).get();
}

}  // namespace

void TransferQueue::perform(std::function<void()> operation) {
  enqueue("deltaport: transfer", operation);
  if (log_ != nullptr) log_->operations_.push_back(std::move(operation));
}

EventPtr TransferQueue::mark_compute() {
  auto result = std::make_shared<LatestEvent>(Direction::to_host);
  perform([this, result] { result->set(do_mark_compute()); });
  return result;
}

void TransferQueue::compute_waits(const EventPtr& event) {
  if (event == nullptr) return;
  perform([this, event] {
    if (const EventPtr now = latest(event))
      do_compute_waits(now, static_cast<const LatestEvent&>(*event).of());
  });
}

EventPtr TransferQueue::copy(Direction direction, std::vector<Copy> copies, std::vector<EventPtr> after) {
  auto result = std::make_shared<LatestEvent>(direction);
  perform([this, result, direction, copies = std::move(copies), after = std::move(after)] {
    std::vector<EventPtr> now;
    for (const EventPtr& event : after)
      if (EventPtr found = latest(event)) now.push_back(std::move(found));
    result->set(do_copy(direction, copies, now));
    std::int64_t& counted = direction == Direction::to_host ? bytes_.to_host : bytes_.to_device;
    for (const Copy& c : copies) counted += static_cast<std::int64_t>(c.bytes);
  });
  return result;
}

TransferStats TransferQueue::take_stats() {
  TransferStats stats = take_seconds();
  stats.to_host_bytes = bytes_.to_host;
  stats.to_device_bytes = bytes_.to_device;
  bytes_ = {};
  return stats;
}

void TransferQueue::count(const TransferBytes& bytes) {
  bytes_.to_host += bytes.to_host;
  bytes_.to_device += bytes.to_device;
}

}  // namespace deltaport::offload
