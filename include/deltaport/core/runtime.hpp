// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "deltaport/core/arena.hpp"
#include "deltaport/core/tensor.hpp"
#include "deltaport/core/work_timer.hpp"

namespace deltaport {

struct RuntimeOptions {
  ArenaOptions arena;
};

/// What every operator needs: the compute stream, the device arena, the BLAS handle and the work timer.
/// Create after Kokkos::initialize, destroy before Kokkos::finalize and after every tensor that should return
/// to its arena. Enqueue from one thread only.
class Runtime {
 public:
  explicit Runtime(RuntimeOptions options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The one stream all operators enqueue to (non-blocking on CUDA).
  const ExecutionSpace& compute() const;
  Arena& arena();
  WorkTimer& timer();
  /// cublasHandle_t on CUDA builds, nullptr on hosts.
  void* blas_handle() const;

  /// Bytes of the device's memory in use, by anybody, as the driver counts them; 0 on host builds.
  std::size_t driver_used_bytes() const;

  /// New uninitialised tensor from the arena.
  template <class T>
  Tensor<T> allocate(std::string_view name, const Shape& shape) {
    return deltaport::allocate<T>(arena(), name, shape);
  }
  /// New tensor of zeros.
  template <class T>
  Tensor<T> allocate_zero(std::string_view name, const Shape& shape) {
    return deltaport::allocate_zero<T>(compute(), arena(), name, shape);
  }

  /// Waits for everything enqueued on the compute stream.
  void fence(const char* why) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Names a stretch of work: a Kokkos Tools region (so that every Kokkos profiler shows it) and an entry of
/// the timer.
class WorkScope {
 public:
  WorkScope(Runtime& runtime, Work kind, const char* region);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace deltaport
