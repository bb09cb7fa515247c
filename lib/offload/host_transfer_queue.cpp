// SPDX-License-Identifier: Apache-2.0
#include "offload/host_transfer_queue.hpp"

#include <chrono>
#include <cstring>
#include <utility>

namespace deltaport::offload {

HostTransferQueue::HostTransferQueue(LaneHooks to_host, LaneHooks to_device)
    : to_host_(std::move(to_host)), to_device_(std::move(to_device)) {}

// No event: whatever the caller did is done.
EventPtr HostTransferQueue::do_mark_compute() {
  return nullptr;
}

void HostTransferQueue::do_compute_waits(const EventPtr& event, Direction of) {
  const auto start = std::chrono::steady_clock::now();
  event->wait();
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  stall_ += waited;
  if (of == Direction::to_host) to_host_stall_ += waited;
}

EventPtr HostTransferQueue::do_copy(Direction direction, const std::vector<Copy>& copies,
                                    const std::vector<EventPtr>& after) {
  HostLane& lane = direction == Direction::to_host ? to_host_ : to_device_;
  return lane.enqueue(after, [copies] {
    for (const Copy& c : copies) std::memcpy(c.to, c.from, c.bytes);
  });
}

TransferStats HostTransferQueue::take_seconds() {
  TransferStats stats;
  stats.to_host_seconds = to_host_.take_seconds();
  stats.to_device_seconds = to_device_.take_seconds();
  stats.stall_seconds = std::exchange(stall_, 0.0);
  stats.to_host_stall_seconds = std::exchange(to_host_stall_, 0.0);
  return stats;
}

void HostTransferQueue::drain() noexcept {
  to_host_.drain();
  to_device_.drain();
}

}  // namespace deltaport::offload
