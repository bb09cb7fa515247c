// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "deltaport/core/saved_mover.hpp"
#include "deltaport/core/segments.hpp"
#include "deltaport/graph/captured_graph.hpp"

namespace deltaport::graph {

/// One segment as it was captured. Its tensors name memory and do not own blocks of it.
struct Segment {
  CapturedGraph graph;
  AnyTensors inputs;
  AnyTensors outputs;
  std::vector<const std::byte*> accumulated;
};

/// The segments of one pass with inputs of certain shapes, in order, and the region that all of them use.
class Chain {
 public:
  enum class State { fresh, measured, ready, eager };

  Chain(Runtime& runtime, std::string pass, std::string description)
      : runtime_(runtime), pass_(std::move(pass)), description_(std::move(description)) {}

  State state() const { return state_; }
  const std::string& pass() const { return pass_; }
  const std::string& description() const { return description_; }
  const std::vector<Segment>& segments() const { return segments_; }
  std::size_t driver_bytes() const;
  /// Memory that the measured pass needs.
  std::size_t region_bytes() const { return region_bytes_; }

  /// The mover's plan in the pass that was measured; 0 without a mover.
  std::uint64_t plan() const { return plan_; }

  /// Each begins a pass and returns its inputs in the region. `spare`: memory of other passes, not used now.
  AnyTensors begin_measuring(const AnyTensors& inputs, const std::shared_ptr<Storage>& spare);
  AnyTensors begin_capturing(const AnyTensors& inputs, const std::shared_ptr<Storage>& memory);
  AnyTensors begin_replaying(const AnyTensors& inputs);

  AnyTensors measure(AnyTensors inputs, const SegmentBody& body);
  /// Runs what moves saved tensors between two segments, with memory of the region.
  void between(const std::function<void()>& action);
  /// Does the next of them again.
  void replay_between() { moved_->between(between_++); }
  /// Captures the next segment; throws CaptureError, and then `inputs` stay in place in the region.
  AnyTensors capture(const std::string& name, AnyTensors& inputs, const AnyTensors& accumulated,
                     const SegmentBody& body, const OperationObserver& observe);
  void launch_last() const { segments_.back().graph.launch(); }
  AnyTensors replay(const std::string& name, const AnyTensors& inputs, const AnyTensors& accumulated);

  /// The same memory, kept alive as part of the region: its block may be taken by later work of the pass.
  AnyTensor unowned(AnyTensor tensor) const;

  /// Each ends a pass that went well. A measured one, that began with the mover's plan `before` and came to `after`; a
  /// captured one, with what moved in it, nullptr without a mover; a replay, which throws CaptureError when it left
  /// segments out.
  void end_measuring(std::uint64_t before, std::uint64_t after);
  void end_capturing(std::unique_ptr<MovedPass> moved);
  void end_replaying();
  /// Forgets what was captured, to begin again, to be captured again elsewhere, or to stay eager.
  void drop(State next);

 private:
  AnyTensor into_region(const AnyTensor& tensor, const char* name);
  AnyTensors into_region(AnyTensors inputs, const char* name);
  AnyTensors unowned(AnyTensors tensors) const;

  Runtime& runtime_;
  std::string pass_;
  std::string description_;
  State state_ = State::fresh;
  std::optional<ArenaRegion> region_;
  std::size_t region_bytes_ = 0;
  AnyTensors fixed_;  // the pass's inputs
  std::vector<Segment> segments_;
  std::size_t position_ = 0;
  std::uint64_t plan_ = 0;
  std::unique_ptr<MovedPass> moved_;
  std::size_t between_ = 0;
};

}  // namespace deltaport::graph
