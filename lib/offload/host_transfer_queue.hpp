// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/offload/transfer_queue.hpp"
#include "offload/host_lane.hpp"

namespace deltaport::offload {

/// Copies by threads. The compute stream is the caller: its kernels have finished when they return.
class HostTransferQueue : public TransferQueue {
 public:
  explicit HostTransferQueue(LaneHooks to_host = {}, LaneHooks to_device = {});

  void drain() noexcept override;

 protected:
  EventPtr do_mark_compute() override;
  void do_compute_waits(const EventPtr& event, Direction of) override;
  EventPtr do_copy(Direction direction, const std::vector<Copy>& copies,
                   const std::vector<EventPtr>& after) override;
  TransferStats take_seconds() override;

 private:
  HostLane to_host_, to_device_;
  double stall_ = 0.0, to_host_stall_ = 0.0;
};

}  // namespace deltaport::offload
