// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "deltaport/core/segments.hpp"
#include "deltaport/graph/captured_graph.hpp"

namespace deltaport::graph {

/// Which segments are captured: none, token mixers, whole layers and the loss, or whole passes.
enum class Scope { none, attention, layer, step };
/// What a failed capture does: end with its error, or run this pass and later ones of its shape eagerly.
enum class OnFailure { error, eager };

struct Options {
  Scope scope = Scope::none;
  std::int64_t warmup_steps = 1;  ///< steps that run eagerly before anything is captured
  OnFailure on_failure = OnFailure::error;
  std::int64_t max_shapes = 8;     ///< different input shapes of one pass that are captured
  OperationObserver observe = {};  ///< told every operation that is captured
};

/// Throws ConfigError naming key and reason for options that make no sense, and for any scope but none in a build that
/// cannot capture.
void check_options(const Options& options);
/// The same for a build whose Kokkos checks bounds, or not.
void check_options(const Options& options, bool bounds_are_checked);

struct Stats {
  std::int64_t chains = 0;       ///< passes that were captured, one per name and input shapes
  std::int64_t segments = 0;     ///< their captured graphs
  std::int64_t operations = 0;   ///< in all of these
  std::int64_t launches = 0;     ///< of captured graphs so far
  std::size_t bytes = 0;         ///< memory that the graphs hold: a block of the arena, and the driver's
  std::size_t driver_bytes = 0;  ///< of these, the driver's
  double capture_seconds = 0;    ///< host time spent capturing so far
};

class Chain;

/// Captures the segments of each pass once and replays them from then on, with the same bits as without.
///
/// A pass's first runs, and all of the first `warmup_steps` steps, are eager; meanwhile the memory that its segments
/// ask for is measured. In the next run every segment is captured and then launched, in order, so that this run is an
/// ordinary one too. Later runs launch the graphs; bodies do not run. All segments use one block of the arena, of the
/// measured size, that nothing else can get: eager work between two segments never takes their memory. Passes follow
/// each other, so other passes and other input shapes use the same block, from the time they are measured; where one needs
/// a larger one, it is replaced and what was captured in the old one is captured again when it is next needed.
///
/// Inputs of a segment that are not in the region are copied there, before a replay as well.
///
/// A mover of saved tensors takes their memory from the region and gives it back there: in the graph itself where whole
/// passes are captured, else between the segments, where each replay has it do the same again. A pass is captured once
/// the mover's plan stays as it is; another plan has the pass measured anew. With Scope::attention, groups that are saved
/// outside of token mixers must not move.
///
/// Not thread-safe. Destroy before the runtime and the mover.
class GraphSegments final : public Segments {
 public:
  /// Throws ConfigError as check_options() does.
  GraphSegments(Runtime& runtime, const Options& options);
  ~GraphSegments() override;

  AnyTensors begin(const std::string& pass, const AnyTensors& inputs, const SavedTensors& saved) override;
  AnyTensors run(SegmentLevel level, const std::string& name, AnyTensors inputs,
                 const AnyTensors& accumulated, SavedTensors& saved, const SegmentBody& body) override;
  void flush(SavedMover& mover) override;
  void prepare(SavedMover& mover) override;
  void end() override;
  void abandon() noexcept override;

  /// Counts an optimizer step, for the warm-up.
  void step_done() { ++steps_; }
  /// Whether segments of this level are captured.
  bool captures(SegmentLevel level) const;
  /// Drops all graphs and gives their memory back to the arena; shapes are measured and captured anew.
  void invalidate();

  Stats stats() const;
  /// What users should know of and was not reported yet: captures that failed, shapes that run eagerly.
  std::vector<std::string> take_notes();

 private:
  enum class Phase { outside, eager, measure, capture, replay };
  /// The shared block, of at least `bytes` bytes.
  const std::shared_ptr<Storage>& memory_of(std::size_t bytes);
  Chain* chain_for(const std::string& pass, const AnyTensors& inputs);
  Phase phase_of(const Chain& chain) const;
  std::uint64_t plan() const;
  AnyTensors begin_capturing(const AnyTensors& inputs);
  void between(SavedMover& mover, void (SavedMover::*action)());
  void fall_back(const std::string& note);
  AnyTensors capture(const std::string& name, AnyTensors inputs, const AnyTensors& accumulated,
                     SavedTensors& saved, const SegmentBody& body);

  Runtime& runtime_;
  Options options_;
  std::map<std::string, std::unique_ptr<Chain>> chains_;  // by pass and shapes
  std::shared_ptr<Storage> memory_;
  Chain* active_ = nullptr;
  SavedMover* mover_ = nullptr;  // of the active pass
  std::uint64_t plan_ = 0;       // the mover's, at its beginning
  Phase phase_ = Phase::outside;
  std::int64_t steps_ = 0;
  std::int64_t launches_ = 0;
  double capture_seconds_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace deltaport::graph
