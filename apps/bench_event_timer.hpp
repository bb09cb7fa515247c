// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "bench_timer.hpp"

namespace deltaport::app {

/// Time on the device between two events around the call, with a second-level cache that holds none of its tensors: a
/// buffer larger than any is rewritten first. That also keeps the device busy while the host enqueues the call, so that
/// a short call is not timed waiting for the host.
class EventTimer : public Timer {
 public:
  explicit EventTimer(Runtime& runtime)
      : buffer_(runtime.allocate<float>("bench cold cache", {std::int64_t{64} << 20})) {
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&stop_));
  }
  ~EventTimer() override {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  EventTimer(const EventTimer&) = delete;
  EventTimer& operator=(const EventTimer&) = delete;

  double seconds(Runtime& runtime, const std::function<void()>& work) override {
    const cudaStream_t stream = runtime.compute().cuda_stream();
    const Kokkos::View<float*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>
        flat(buffer_.data(), static_cast<std::size_t>(buffer_.size()));
    for (int pass = 1; pass <= passes; ++pass)
      Kokkos::deep_copy(runtime.compute(), flat, static_cast<float>(pass));
    check(cudaEventRecord(start_, stream));
    work();
    check(cudaEventRecord(stop_, stream));
    check(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return 1e-3 * milliseconds;
  }

 private:
  static constexpr int passes = 4;  // some 60 us each
  static void check(cudaError_t error) {
    DELTAPORT_VALIDATE(error == cudaSuccess, DeviceError, "timing by events: ", cudaGetErrorString(error));
  }
  Tensor<float> buffer_;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
};

}  // namespace deltaport::app
