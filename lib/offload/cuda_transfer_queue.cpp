// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <mutex>
#include <utility>

#include "deltaport/core/error.hpp"
#include "deltaport/offload/transfer_queue.hpp"

namespace deltaport::offload {
namespace {

void check(cudaError_t status, const char* what) {
  DELTAPORT_VALIDATE(status == cudaSuccess, DeviceError, "transfer queue: ", what, ": ",
                     cudaGetErrorString(status));
}

/// Events that were used before, so that a step creates none. Lives as long as the last event taken from it.
class EventStore {
 public:
  EventStore() = default;
  EventStore(const EventStore&) = delete;
  EventStore& operator=(const EventStore&) = delete;
  ~EventStore() {
    for (cudaEvent_t event : free_) (void)cudaEventDestroy(event);
  }
  cudaEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
    return event;
  }
  void give(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class CudaEvent : public Event {
 public:
  CudaEvent(std::shared_ptr<EventStore> store, cudaStream_t stream)
      : store_(std::move(store)), event_(store_->take()) {
    check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  ~CudaEvent() override { store_->give(event_); }
  bool query() const override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaEventQuery");
    return true;
  }
  void wait() const override { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  cudaEvent_t get() const { return event_; }

 private:
  std::shared_ptr<EventStore> store_;
  cudaEvent_t event_;
};

/// A non-blocking stream.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaTransferQueue : public TransferQueue {
 public:
  explicit CudaTransferQueue(cudaStream_t compute) : compute_(compute) {}

  void drain() noexcept override {
    (void)cudaStreamSynchronize(to_host_.get());
    (void)cudaStreamSynchronize(to_device_.get());
  }

 protected:
  EventPtr do_mark_compute() override { return mark(compute_); }

  void do_compute_waits(const EventPtr& event, Direction of) override {
    if (is_capturing()) return wait(compute_, event);
    const auto before = mark(compute_);
    wait(compute_, event);
    (of == Direction::to_host ? to_host_stalls_ : to_device_stalls_).emplace_back(before, mark(compute_));
  }

  EventPtr do_copy(Direction direction, const std::vector<Copy>& copies,
                   const std::vector<EventPtr>& after) override {
    const bool to_host = direction == Direction::to_host;
    cudaStream_t stream = (to_host ? to_host_ : to_device_).get();
    for (const EventPtr& event : after) wait(stream, event);
    const bool timed = !is_capturing();
    const auto before = timed ? mark(stream) : nullptr;
    for (const Copy& c : copies)
      check(cudaMemcpyAsync(c.to, c.from, c.bytes, to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                            stream),
            "cudaMemcpyAsync");
    const auto done = mark(stream);
    if (timed) (to_host ? to_host_spans_ : to_device_spans_).emplace_back(before, done);
    return done;
  }

  TransferStats take_seconds() override {
    TransferStats stats;
    stats.to_host_seconds = seconds_of(to_host_spans_);
    stats.to_device_seconds = seconds_of(to_device_spans_);
    stats.to_host_stall_seconds = seconds_of(to_host_stalls_);
    stats.stall_seconds = stats.to_host_stall_seconds + seconds_of(to_device_stalls_);
    return stats;
  }

 private:
  using Mark = std::shared_ptr<const CudaEvent>;
  using Spans = std::vector<std::pair<Mark, Mark>>;

  Mark mark(cudaStream_t stream) { return std::make_shared<CudaEvent>(store_, stream); }

  static void wait(cudaStream_t stream, const EventPtr& event) {
    check(cudaStreamWaitEvent(stream, static_cast<const CudaEvent&>(*event).get(), 0), "cudaStreamWaitEvent");
  }

  // Events that are recorded in a graph have no time.
  bool is_capturing() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(compute_, &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

  static double seconds_of(Spans& spans) {
    double seconds = 0.0;
    for (const auto& [begin, end] : spans) {
      float milliseconds = 0.0F;
      end->wait();
      check(cudaEventElapsedTime(&milliseconds, begin->get(), end->get()), "cudaEventElapsedTime");
      seconds += static_cast<double>(milliseconds) * 1e-3;
    }
    spans.clear();
    return seconds;
  }

  cudaStream_t compute_;
  Stream to_host_, to_device_;
  std::shared_ptr<EventStore> store_ = std::make_shared<EventStore>();
  Spans to_host_spans_, to_device_spans_, to_host_stalls_, to_device_stalls_;
};

}  // namespace

std::unique_ptr<TransferQueue> make_transfer_queue(const ExecutionSpace& compute) {
  return std::make_unique<CudaTransferQueue>(compute.cuda_stream());
}

}  // namespace deltaport::offload
