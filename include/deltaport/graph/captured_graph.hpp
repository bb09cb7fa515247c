// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "deltaport/core/runtime.hpp"

namespace deltaport::graph {

/// Told the label of every operation that a capture meets. What it throws fails the capture.
using OperationObserver = std::function<void(const char* operation)>;

/// One stretch of enqueued work, captured once and launched any number of times. On CUDA a graph of the compute
/// stream's own capture (thread-local mode); on hosts the operations' closures in their order. Addresses and host
/// values are those of the capture, so all memory that the work uses must outlive the graph.
class CapturedGraph {
 public:
  /// Runs `body` and captures what it enqueues on the runtime's compute stream; none of it is executed. Everything
  /// must have run before (kernels are loaded and library workspaces made at their first use, which a capture
  /// forbids). On other streams, work that was forked off by events must have been joined. Throws CaptureError naming
  /// `name` and the operation at which it failed; the stream is usable then, and nothing was executed.
  static CapturedGraph capture(Runtime& runtime, const std::string& name, const std::function<void()>& body,
                               const OperationObserver& observe = {});

  CapturedGraph() = default;

  /// Enqueues all operations on the compute stream of the capture (on hosts they have finished on return). Allocates
  /// nothing and waits for nothing. Throws DeviceError when CUDA refuses.
  void launch() const;

  const std::string& name() const;
  /// Closures, or nodes of the graph.
  std::int64_t operations() const;
  /// Device memory that the driver took for the graph (zero on hosts).
  std::size_t driver_bytes() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace deltaport::graph
