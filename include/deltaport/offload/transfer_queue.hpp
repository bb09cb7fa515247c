// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

struct TransferBytes {
  std::int64_t to_host = 0;
  std::int64_t to_device = 0;
};

/// Since the last call. Copies count from their start, waits not included.
struct TransferStats {
  std::int64_t to_host_bytes = 0;
  std::int64_t to_device_bytes = 0;
  double to_host_seconds = 0.0;
  double to_device_seconds = 0.0;
  double stall_seconds = 0.0;  ///< the compute stream stood still for compute_waits()
  double to_host_stall_seconds =
      0.0;  ///< of these, for copies to the host: they keep memory that is to be given back
};

/// What was asked of a queue while it recorded, to be asked again with the same memory: between the replays of captured
/// graphs, where the program that asked does not run. Not to be mixed up with transfers inside a captured stretch of
/// work: those become part of it (enqueue.hpp), on CUDA as nodes, and must be waited for by the compute stream in it.
class TransferLog {
 public:
  void replay() const {
    for (const auto& operation : operations_) operation();
  }
  std::size_t size() const { return operations_.size(); }

 private:
  friend class TransferQueue;
  std::vector<std::function<void()>> operations_;
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
  EventPtr mark_compute();
  /// What is enqueued on the compute stream from now on starts after the event, one that copy() gave. nullptr is ignored.
  void compute_waits(const EventPtr& event);
  /// Enqueues the copies, to start after the events of `after` (nullptr among them is ignored); the result passes when
  /// all are done. Memory must stay until then. Events must be this queue's own. Throws DeviceError.
  EventPtr copy(Direction direction, std::vector<Copy> copies, std::vector<EventPtr> after);

  /// Appends every call to `log` as well, until the next call; nullptr ends it. An event that a logged call returned
  /// stands for the latest replay. `log` must not be replayed after the queue is gone.
  void record(TransferLog* log) { log_ = log; }

  /// Bytes of all copies so far, since the last take_stats(); those of a CUDA graph count once, at its capture.
  TransferBytes bytes() const { return bytes_; }
  /// Adds copies that a replayed graph made.
  void count(const TransferBytes& bytes);

  /// Waits for all copies that a compute_waits() waited for.
  TransferStats take_stats();
  /// Returns when all copies are done.
  virtual void drain() noexcept = 0;

 protected:
  // As above, without logging. nullptr is an event that has passed; none is given to them.
  virtual EventPtr do_mark_compute() = 0;
  virtual void do_compute_waits(const EventPtr& event, Direction of) = 0;
  virtual EventPtr do_copy(Direction direction, const std::vector<Copy>& copies,
                           const std::vector<EventPtr>& after) = 0;
  /// Fills the seconds.
  virtual TransferStats take_seconds() = 0;

 private:
  void perform(std::function<void()> operation);

  TransferLog* log_ = nullptr;
  TransferBytes bytes_;
};

/// The queue of this build beside `compute`.
std::unique_ptr<TransferQueue> make_transfer_queue(const ExecutionSpace& compute);

}  // namespace deltaport::offload
