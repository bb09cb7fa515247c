// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/offload/transfer_queue.hpp"
#include "offload/host_lane.hpp"

namespace deltaport::offload {

/// Copies by threads. The compute stream is the caller: its kernels have finished when they return.
class HostTransferQueue : public TransferQueue {
 public:
  explicit HostTransferQueue(LaneHooks to_host = {}, LaneHooks to_device = {});

  EventPtr mark_compute() override;
  void compute_waits(const EventPtr& event) override;
  EventPtr copy(Direction direction, const std::vector<Copy>& copies,
                const std::vector<EventPtr>& after) override;
  TransferTimes take_times() override;
  void drain() noexcept override;

 private:
  HostLane to_host_, to_device_;
  double stall_ = 0.0;
};

}  // namespace deltaport::offload
