// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "deltaport/core/context.hpp"

namespace deltaport {

/// How much of a training step one segment holds.
enum class SegmentLevel { mixer, layer, step };

using AnyTensors = std::vector<AnyTensor>;
/// The host code of a segment: takes its inputs, enqueues work, returns its outputs.
using SegmentBody = std::function<AnyTensors(AnyTensors)>;

/// Cuts the work of a pass (one micro-batch forward and backward, or one optimizer update) into segments, each of
/// which may be captured once and replayed from then on. A model that is given none simply runs its bodies.
///
/// What a body reads must be one of: tensors that begin() returned, its inputs, tensors that live as long as the
/// Segments object at one address (parameters, optimizer state), or what it allocates itself. Host values are
/// captured as they are: whatever changes between passes must be a tensor. At a replay the body does not run: its
/// saved tensors are neither saved nor taken, so a segment must take what a segment saved, and the code between
/// segments what that code saved.
class Segments {
 public:
  virtual ~Segments() = default;

  /// Starts a pass. Returns the inputs where bodies may read them: at addresses that stay the same for all passes of
  /// this name with inputs of these shapes; values are copied there on the compute stream. `saved` is what the pass's
  /// segments save to; its mover, if there is one, stays the same for all passes.
  virtual AnyTensors begin(const std::string& pass, const AnyTensors& inputs, const SavedTensors& saved) = 0;
  /// Runs a segment. `accumulated` are tensors that the body adds to in place: their addresses must be those of the
  /// capture (throws CaptureError naming the segment). Outputs stay valid until the next pass begins.
  virtual AnyTensors run(SegmentLevel level, const std::string& name, AnyTensors inputs,
                         const AnyTensors& accumulated, SavedTensors& saved, const SegmentBody& body) = 0;
  /// Call the mover between two segments of a layer's level, or have it do again what it did at the capture.
  virtual void flush(SavedMover& mover) = 0;
  virtual void prepare(SavedMover& mover) = 0;
  /// Ends a pass that went well.
  virtual void end() = 0;
  /// Ends a pass that was left by an exception. Does nothing after end().
  virtual void abandon() noexcept = 0;
};

/// One pass: begins, and abandons what end() did not end. Without segments in the context inputs stay where they are.
class SegmentPass {
 public:
  SegmentPass(Context& context, const std::string& name, const AnyTensors& inputs)
      : segments_(context.segments),
        inputs_(segments_ != nullptr ? segments_->begin(name, inputs, context.saved) : inputs) {}
  ~SegmentPass() {
    if (segments_ != nullptr) segments_->abandon();
  }
  SegmentPass(const SegmentPass&) = delete;
  SegmentPass& operator=(const SegmentPass&) = delete;

  template <class T>
  Tensor<T> input(std::size_t i) const {
    return inputs_.at(i).template as<T>();
  }
  void end() {
    if (segments_ != nullptr) segments_->end();
  }

 private:
  Segments* segments_;
  AnyTensors inputs_;
};

/// Runs a segment of the context's pass, or just its body where nothing is to be captured.
AnyTensors run_segment(Context& context, SegmentLevel level, const std::string& name, AnyTensors inputs,
                       const AnyTensors& accumulated, const SegmentBody& body);

/// Tell the mover of the context's saved tensors, if there is one, that a layer's forward has been enqueued, or that its
/// backward will be. Evaluation tells it nothing.
void flush_saved(Context& context);
void prepare_saved(Context& context);

}  // namespace deltaport
