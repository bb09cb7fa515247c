// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "deltaport/core/enqueue.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/graph/captured_graph.hpp"

namespace deltaport::graph {

/// Follows the operations of one capture, for the message when it fails.
class CaptureLog : public Recorder {
 public:
  CaptureLog(std::string segment, OperationObserver observe)
      : segment_(std::move(segment)), observe_(std::move(observe)) {}

  void begin(const char* operation) override {
    operation_ = operation;
    if (observe_) observe_(operation);
  }

  /// Runs the body with this recorder; returns what went wrong, empty for nothing.
  std::string run(const std::function<void()>& body) {
    const RecordingScope scope(*this);
    try {
      body();
      return {};
    } catch (const std::exception& e) {
      return concat("captured segment '", segment_, "': ", e.what(), " (", place(), ")");
    }
  }
  std::string place() const {
    return operation_ == nullptr ? "before its first operation"
                                 : concat("last operation: '", operation_, "'");
  }

 private:
  std::string segment_;
  OperationObserver observe_;
  const char* operation_ = nullptr;
};

}  // namespace deltaport::graph
