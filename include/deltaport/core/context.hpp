// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deltaport/core/runtime.hpp"
#include "deltaport/core/tensor.hpp"

namespace deltaport {

/// A tensor without its element type in the C++ type.
struct AnyTensor {
  std::shared_ptr<Storage> storage;
  std::byte* data = nullptr;
  Shape shape;
  Dtype dtype = Dtype::f32;

  AnyTensor() = default;
  template <class T>
  AnyTensor(const Tensor<T>& x)
      : storage(x.storage()),
        data(reinterpret_cast<std::byte*>(x.data())),
        shape(x.shape()),
        dtype(dtype_of<T>) {}

  template <class T>
  Tensor<T> as() const {
    DELTAPORT_VALIDATE(dtype == dtype_of<T>, ShapeError, "saved tensor is ", name_of(dtype), ", asked for ",
                       name_of(dtype_of<T>));
    return Tensor<T>(storage, reinterpret_cast<T*>(data), shape);
  }
};

struct SavedGroup;
class SavedMover;  // saved_mover.hpp

/// What forward keeps for backward. Last in, first out: a layer's backward takes its tensors in the reverse
/// order of its forward's saves. Tensors saved between open() and commit() form a named group (scope) such as
/// "gdn_core_attn": the unit in which a mover takes them away and brings them back. Host bookkeeping only; no device
/// work, no copies, but those of the mover.
class SavedTensors {
 public:
  /// `mover` must outlive this; nullptr for none. Throws Error unless empty().
  void set_mover(SavedMover* mover);
  SavedMover* mover() const { return mover_; }

  /// Begins a group. Groups do not nest (throws Error).
  void open(std::string_view group);
  /// Ends the open group.
  void commit();
  template <class T>
  void save(const Tensor<T>& x) {
    tensors_.emplace_back(x);
  }
  /// Removes and returns the tensor saved last. Throws Error when nothing is left, and while a group is open.
  template <class T>
  Tensor<T> take() {
    return pop().template as<T>();
  }

  bool empty() const { return tensors_.empty(); }
  std::size_t size() const { return tensors_.size(); }
  /// Bytes held in distinct storages, optionally only those of one group. What a mover took does not count.
  std::size_t bytes(std::string_view group = {}) const;
  /// The same list with each tensor t replaced by of(t).
  SavedTensors replaced(const std::function<AnyTensor(const AnyTensor&)>& of) const;
  /// Drops everything (a forward without backward).
  void clear();

 private:
  struct Group {
    std::string name;
    std::size_t begin, end;  // its tensors that were not taken yet; end is 0 while it is open
    bool started = false;    // some were taken
  };
  AnyTensor pop();
  SavedGroup view(const Group& group);

  std::vector<AnyTensor> tensors_;
  std::vector<Group> groups_;
  SavedMover* mover_ = nullptr;
  bool open_ = false;
};

/// Whether forward must keep what backward needs.
enum class Mode { train, evaluate };

class Segments;

/// Passed to every layer's forward and backward.
struct Context {
  Runtime& runtime;
  SavedTensors& saved;
  Mode mode = Mode::train;
  Segments* segments = nullptr;  ///< captures training passes; see segments.hpp

  const ExecutionSpace& exec() const { return runtime.compute(); }
  bool training() const { return mode == Mode::train; }
};

/// Boundaries of the packed documents of one flat run of T tokens.
/// cu_seqlens is int32 [N + 1], 0 first, T last, ascending (equal neighbours are empty sequences).
struct Sequences {
  Tensor<std::int32_t> cu_seqlens;   ///< device, [N + 1]
  Tensor<std::int32_t> positions;    ///< device, [T]: position of each token in its own document
  Tensor<std::int32_t> sequence_of;  ///< device, [T]: index of the sequence each token belongs to
  std::int64_t row_tokens = 0;       ///< no sequence crosses a multiple of this; 0: nothing is known
  std::int64_t count() const { return cu_seqlens.extent(0) - 1; }
};

/// Builds the device tensors from host boundaries. Throws ShapeError unless they start at 0, ascend and end
/// at `tokens`. Fences the compute stream.
Sequences make_sequences(Runtime& runtime, const std::vector<std::int32_t>& cu_seqlens, std::int64_t tokens);

}  // namespace deltaport
