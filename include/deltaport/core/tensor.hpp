// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <memory>
#include <string_view>
#include <vector>

#include "deltaport/core/arena.hpp"
#include "deltaport/core/dtype.hpp"
#include "deltaport/core/enqueue.hpp"
#include "deltaport/core/shape.hpp"

namespace deltaport {

using ExecutionSpace = Kokkos::DefaultExecutionSpace;
using MemorySpace = ExecutionSpace::memory_space;
using HostSpace = Kokkos::HostSpace;

namespace detail {
template <class T, int Rank>
struct AddPointers {
  using type = typename AddPointers<T*, Rank - 1>::type;
};
template <class T>
struct AddPointers<T, 0> {
  using type = T;
};
}  // namespace detail

/// Unmanaged row-major Kokkos View of a tensor, in the execution space's memory.
template <class T, int Rank>
using TensorView = Kokkos::View<typename detail::AddPointers<T, Rank>::type, Kokkos::LayoutRight, MemorySpace,
                                Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Dense row-major array in the execution space's memory, sharing ownership of one arena block. Copies are
/// cheap and share memory. A default-constructed tensor is empty ("not given").
template <class T>
class Tensor {
 public:
  using value_type = T;

  Tensor() = default;
  Tensor(std::shared_ptr<Storage> storage, T* data, Shape shape)
      : storage_(std::move(storage)), data_(data), shape_(shape) {}

  bool defined() const { return storage_ != nullptr; }
  explicit operator bool() const { return defined(); }

  T* data() const { return data_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t extent(int i) const { return shape_[i]; }
  std::int64_t size() const { return defined() ? shape_.size() : 0; }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(T); }
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  /// The same elements under another shape. Throws ShapeError when the element counts differ.
  Tensor reshape(const Shape& shape) const {
    DELTAPORT_VALIDATE(shape.size() == shape_.size(), ShapeError, "cannot reshape ", shape_.str(), " to ",
                       shape.str());
    return Tensor(storage_, data_, shape);
  }

  /// Rows [begin, end) of the first dimension, sharing memory.
  Tensor rows(std::int64_t begin, std::int64_t end) const {
    DELTAPORT_VALIDATE(rank() >= 1 && 0 <= begin && begin <= end && end <= extent(0), ShapeError, "rows [",
                       begin, ", ", end, ") of ", shape_.str());
    Shape shape{end - begin};
    std::int64_t stride = 1;
    for (int i = 1; i < rank(); ++i) {
      shape.push_back(extent(i));
      stride *= extent(i);
    }
    return Tensor(storage_, data_ + begin * stride, shape);
  }

  /// Kokkos View of the same memory; Rank must equal rank().
  template <int Rank>
  TensorView<T, Rank> view() const {
    DELTAPORT_VALIDATE(Rank == rank(), ShapeError, "view of rank ", Rank, " of ", shape_.str());
    return make_view<Rank>(std::make_index_sequence<static_cast<std::size_t>(Rank)>{});
  }

 private:
  template <int Rank, std::size_t... I>
  TensorView<T, Rank> make_view(std::index_sequence<I...>) const {
    return TensorView<T, Rank>(data_, static_cast<std::size_t>(shape_[static_cast<int>(I)])...);
  }

  std::shared_ptr<Storage> storage_;
  T* data_ = nullptr;
  Shape shape_;
};

/// A new, uninitialised tensor from the arena. Host-side only; no device work.
template <class T>
Tensor<T> allocate(Arena& arena, std::string_view name, const Shape& shape) {
  auto storage = arena.allocate(name, static_cast<std::size_t>(shape.size()) * sizeof(T));
  T* data = reinterpret_cast<T*>(storage->data());
  return Tensor<T>(std::move(storage), data, shape);
}

/// Enqueues setting every element to zero.
template <class T>
void set_zero(const ExecutionSpace& exec, const Tensor<T>& x) {
  if (x.size() == 0) return;
  Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> flat(
      x.data(), static_cast<std::size_t>(x.size()));
  enqueue("deltaport: set to zero", [=] { Kokkos::deep_copy(exec, flat, T{}); });
}

/// Enqueues setting every element to a value of the host. Cannot be captured (throws CaptureError): the value would be
/// that of all replays.
template <class T>
void fill(const ExecutionSpace& exec, const Tensor<T>& x, T value) {
  require_not_recording("deltaport: fill", "a value of the host would be that of all replays");
  if (x.size() == 0) return;
  Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> flat(
      x.data(), static_cast<std::size_t>(x.size()));
  Kokkos::deep_copy(exec, flat, value);
}

/// A new tensor of zeros; enqueues the fill.
template <class T>
Tensor<T> allocate_zero(const ExecutionSpace& exec, Arena& arena, std::string_view name, const Shape& shape) {
  Tensor<T> x = allocate<T>(arena, name, shape);
  set_zero(exec, x);
  return x;
}

/// Enqueues a copy of all elements; sizes must agree (ShapeError otherwise).
template <class T>
void copy(const ExecutionSpace& exec, const Tensor<T>& to, const Tensor<T>& from) {
  DELTAPORT_VALIDATE(to.size() == from.size(), ShapeError, "copy of ", from.shape().str(), " to ",
                     to.shape().str());
  if (to.size() == 0) return;
  using Flat = Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const Flat target(to.data(), static_cast<std::size_t>(to.size()));
  const Flat source(from.data(), static_cast<std::size_t>(from.size()));
  enqueue("deltaport: copy", [=] { Kokkos::deep_copy(exec, target, source); });
}

/// Copies host values to the device; returns after the copy has finished (fences `exec` only).
template <class T>
void copy_from_host(const ExecutionSpace& exec, const Tensor<T>& to, const T* host) {
  require_not_recording("deltaport: host to device copy",
                        "it takes values from the host and waits for the stream");
  if (to.size() == 0) return;
  const auto n = static_cast<std::size_t>(to.size());
  Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> device(
      to.data(), n);
  Kokkos::View<const T*, Kokkos::LayoutRight, HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> source(host,
                                                                                                         n);
  Kokkos::deep_copy(exec, device, source);
  exec.fence("deltaport: host to device copy");
}

/// Copies to host memory of at least size() elements; returns after the copy has finished (fences `exec`
/// only).
template <class T>
void copy_to_host(const ExecutionSpace& exec, T* host, const Tensor<T>& from) {
  require_not_recording("deltaport: device to host copy",
                        "the host would read results that do not exist yet");
  if (from.size() == 0) return;
  const auto n = static_cast<std::size_t>(from.size());
  Kokkos::View<T*, Kokkos::LayoutRight, HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> target(host, n);
  Kokkos::View<const T*, Kokkos::LayoutRight, MemorySpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>> device(
      from.data(), n);
  Kokkos::deep_copy(exec, target, device);
  exec.fence("deltaport: device to host copy");
}

/// All elements as a host vector; fences `exec`.
template <class T>
std::vector<T> to_vector(const ExecutionSpace& exec, const Tensor<T>& x) {
  std::vector<T> host(static_cast<std::size_t>(x.size()));
  copy_to_host(exec, host.data(), x);
  return host;
}

/// A new tensor with the values of `host`; fences `exec`. Throws ShapeError when the counts differ.
template <class T>
Tensor<T> from_vector(const ExecutionSpace& exec, Arena& arena, std::string_view name, const Shape& shape,
                      const std::vector<T>& host) {
  DELTAPORT_VALIDATE(static_cast<std::size_t>(shape.size()) == host.size(), ShapeError, name, ": ",
                     host.size(), " values for shape ", shape.str());
  Tensor<T> x = allocate<T>(arena, name, shape);
  copy_from_host(exec, x, host.data());
  return x;
}

}  // namespace deltaport
