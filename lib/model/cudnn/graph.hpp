// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace deltaport::cudnn {

/// Throws DeviceError with cuDNN's own words unless `status` is success.
void check(cudnnStatus_t status, const char* what);

/// Owner of one descriptor of cuDNN's backend interface.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  template <class V>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const V* values,
           std::int64_t count = 1) {
    check(cudnnBackendSetAttribute(handle_, name, type, count, values), "set attribute");
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &other.handle_);
  }
  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(handle_); }
  void finalize() { check(try_finalize(), "finalize"); }
  cudnnBackendDescriptor_t get() const { return handle_; }

 private:
  void reset();
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// Sizes or strides of a tensor [batch, heads, tokens, columns].
using Extents = std::array<std::int64_t, 4>;

/// Pointers for the tensors of a plan, by their ids.
struct Bindings {
  std::vector<std::int64_t> ids;
  std::vector<const void*> pointers;
  void bind(std::int64_t id, const void* pointer) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
};

/// An operation graph made executable by one engine.
class Plan {
 public:
  Plan() = default;
  /// Bytes of device memory that every execution needs.
  std::int64_t workspace_bytes() const { return workspace_; }
  bool defined() const { return plan_.get() != nullptr; }
  /// Enqueues on the handle's stream. No allocation on the device, no synchronisation: may be captured.
  void execute(cudnnHandle_t handle, const Bindings& bindings, void* workspace) const;

 private:
  friend class Graph;
  Descriptor plan_;
  std::int64_t workspace_ = 0;
};

/// Builds an operation graph node by node. Tensors are named by ids; those of the graph's boundary are bound
/// to memory at each execution.
class Graph {
 public:
  using Id = std::int64_t;
  static constexpr Id none = -1;

  /// A tensor in device memory.
  Id tensor(const Extents& extents, const Extents& strides, cudnnDataType_t type);
  /// A value that never reaches device memory, dense.
  Id intermediate(const Extents& extents, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Id intermediate(const Extents& extents, const Extents& strides, cudnnDataType_t type);
  /// A number bound by a host pointer.
  Id scalar(cudnnDataType_t type = CUDNN_DATA_FLOAT);

  /// c = a b of each batch entry and head; operands with fewer heads serve groups of them.
  void matmul(Id a, Id b, Id c);
  struct Operands {
    Id b = none, t = none;
  };
  /// y = mode(x, b, t); operands of extent 1 are repeated.
  void pointwise(cudnnPointwiseMode_t mode, Id x, Id y, const Operands& more,
                 cudnnDataType_t compute = CUDNN_DATA_FLOAT);
  /// y = index along `axis`, shaped like x.
  void index(std::int64_t axis, Id x, Id y, cudnnDataType_t compute);
  /// Along the axes in which y has extent 1, or over groups of heads.
  void reduce(cudnnReduceTensorOp_t op, Id x, Id y);
  /// The same memory seen with the extents of y.
  void reshape(Id x, Id y);

  /// The first engine in cuDNN's order of preference that takes the graph, gives the same bits each time and
  /// whose bytes of workspace fit; Plan::defined() is false when there is none. Takes milliseconds to seconds and
  /// may allocate: not while a stream is captured.
  Plan plan(cudnnHandle_t handle, std::int64_t workspace_limit);

 private:
  Id add(const Extents& extents, const Extents& strides, cudnnDataType_t type, bool is_virtual,
         bool by_value);
  Descriptor& operation(cudnnBackendDescriptorType_t type);
  const Descriptor& at(Id id) const { return tensors_[static_cast<std::size_t>(id - 1)]; }

  std::deque<Descriptor> tensors_, parts_, operations_;
};

}  // namespace deltaport::cudnn
