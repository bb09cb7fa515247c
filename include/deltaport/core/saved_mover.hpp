// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "deltaport/core/context.hpp"

namespace deltaport {

/// The tensors of one committed group, in the order of their saves; some may be empty.
struct SavedGroup {
  std::string_view name;
  std::span<AnyTensor> tensors;
};

/// What a mover did in one captured pass, to be done again with the same memory where the pass is replayed: then nothing
/// is saved and taken, and the mover is not called. Host memory that it uses is its own until it is destroyed. Destroy
/// before the mover.
class MovedPass {
 public:
  virtual ~MovedPass() = default;
  /// Does again what the n-th call of flush() or prepare() did, counted from 0. With Captured::whole there are none.
  virtual void between(std::size_t n) = 0;
  /// Everything of one replay has been enqueued; counts it in the mover's figures.
  virtual void replayed() = 0;
};

/// May take the memory of committed groups away, and must bring it back before its tensors are taken. It replaces
/// `storage` and `data` of a group's tensors. Called from the thread that enqueues.
class SavedMover {
 public:
  SavedMover() = default;
  virtual ~SavedMover() = default;
  SavedMover(const SavedMover&) = delete;
  SavedMover& operator=(const SavedMover&) = delete;

  /// A group of at least one tensor was committed. Work that is enqueued later may still read its tensors, as long as
  /// somebody else owns them too.
  virtual void committed(const SavedGroup& group) = 0;
  /// The first tensor of the group is about to be taken: all of them must be there, in stream order of the compute
  /// stream. Groups come in the reverse order of their commits.
  virtual void before_take(const SavedGroup& group) = 0;
  /// A layer's forward has been enqueued: a good point to start what was put off.
  virtual void flush() = 0;
  /// A layer's backward is about to be enqueued.
  virtual void prepare() = 0;
  /// All groups are dropped without being taken.
  virtual void dropped() = 0;

  /// Changes whenever another pass that saves the same groups would be treated otherwise than the last one. A pass at
  /// whose beginning and end it was the same asks for the same memory as the next one with this value.
  virtual std::uint64_t plan() const = 0;

  /// What of a pass is captured: stretches of it, with no flush() and no prepare() inside, or all of it.
  enum class Captured { stretches, whole };
  /// The pass that begins now will be captured, and then replayed any number of times: it must not depend on transfers
  /// from before. Throws CaptureError when the mover cannot work so. Until end_capture(), committed() throws CaptureError
  /// for a group that the plan does not have.
  virtual void begin_capture(Captured captured) = 0;
  /// Ends it; to be called after a pass that failed, too. Waits for what it has enqueued.
  virtual std::unique_ptr<MovedPass> end_capture() = 0;

  /// What a pass has come to.
  class State {
   public:
    virtual ~State() = default;
  };
  /// A copy of it, in which each tensor t that names memory is replaced by of(t).
  virtual std::unique_ptr<State> state(const std::function<AnyTensor(const AnyTensor&)>& of) const = 0;
  /// Goes back to it: what was called since then had been captured, was not executed, and never will be.
  virtual void restore(const State& state) = 0;
};

}  // namespace deltaport
