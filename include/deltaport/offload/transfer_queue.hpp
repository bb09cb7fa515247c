// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "deltaport/core/tensor.hpp"
#include "deltaport/offload/event.hpp"

namespace deltaport::offload {

using EventPtr = std::shared_ptr<const Event>;

enum class Direction { to_host, to_device };

struct Copy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

/// Seconds since the last call. Copies count from their start, waits not included.
struct TransferTimes {
  double to_host = 0.0;
  double to_device = 0.0;
  double stall = 0.0;  ///< the compute stream stood still for compute_waits()
};

/// Copies between device and host beside the compute stream: one order of copies per direction, and events between the
/// three. Called from the thread that enqueues on the compute stream. CUDA: two non-blocking streams. Hosts: a thread
/// per direction, and kernels that have finished when they return, so that compute_waits() blocks the caller.
class TransferQueue {
 public:
  TransferQueue() = default;
  virtual ~TransferQueue() = default;
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  /// Passes when all that has been enqueued on the compute stream so far is done.
  virtual EventPtr mark_compute() = 0;
  /// What is enqueued on the compute stream from now on starts after the event. nullptr is ignored.
  virtual void compute_waits(const EventPtr& event) = 0;
  /// Enqueues the copies, to start after the events of `after` (nullptr among them is ignored); the result passes when
  /// all are done. Memory must stay until then. Throws DeviceError.
  virtual EventPtr copy(Direction direction, const std::vector<Copy>& copies,
                        const std::vector<EventPtr>& after) = 0;
  /// Waits for all copies that a compute_waits() waited for.
  virtual TransferTimes take_times() = 0;
  /// Returns when all copies are done.
  virtual void drain() noexcept = 0;
};

/// The queue of this build beside `compute`.
std::unique_ptr<TransferQueue> make_transfer_queue(const ExecutionSpace& compute);

}  // namespace deltaport::offload
