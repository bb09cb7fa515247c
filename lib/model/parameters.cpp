// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/parameters.hpp"

#include <algorithm>
#include <cmath>

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t alignment_elements = 64;

// Draws in double and rounds once, so float32 and float64 models start from the same numbers.
template <class T>
struct FillParameter {
  Initializer init;
  std::uint64_t seed;
  std::uint64_t stream;
  T* out;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const auto element = static_cast<std::uint64_t>(i);
    double value = 0.0;
    switch (init.kind) {
      case Initializer::Kind::zeros:
        break;
      case Initializer::Kind::ones:
        value = 1.0;
        break;
      case Initializer::Kind::normal:
        value = init.a * normal(seed, stream, element);
        break;
      case Initializer::Kind::log_uniform:
        value = Kokkos::log(init.a + (init.b - init.a) * uniform(seed, stream, element));
        break;
      case Initializer::Kind::inverse_softplus_log_uniform: {
        const double low = Kokkos::log(init.a);
        const double high = Kokkos::log(init.b);
        const double dt = Kokkos::exp(low + (high - low) * uniform(seed, stream, element));
        value = dt + Kokkos::log(-Kokkos::expm1(-dt));
        break;
      }
    }
    out[i] = static_cast<T>(value);
  }
};

}  // namespace

template <class T>
int ParameterSet<T>::add(ParameterInfo info) {
  DELTAPORT_VALIDATE(!values_.defined(), Error, "parameter '", info.name, "' declared after allocate()");
  for (const ParameterInfo& other : infos_)
    DELTAPORT_VALIDATE(other.name != info.name, Error, "parameter '", info.name, "' is declared twice");
  info.offset = flat_size_;
  flat_size_ += info.shape.size();
  infos_.push_back(std::move(info));
  return static_cast<int>(infos_.size()) - 1;
}

template <class T>
int ParameterSet<T>::declare(const std::string& name, const Shape& shape, bool decay, Initializer init) {
  return declare_fused({ParameterInfo{name, shape, 0, decay, init}});
}

template <class T>
int ParameterSet<T>::declare_fused(const std::vector<ParameterInfo>& members) {
  DELTAPORT_VALIDATE(!members.empty(), Error, "a fused block needs members");
  flat_size_ = (flat_size_ + alignment_elements - 1) / alignment_elements * alignment_elements;
  const int first = static_cast<int>(infos_.size());
  for (const ParameterInfo& member : members) {
    const Shape& shape = member.shape;
    DELTAPORT_VALIDATE(members.size() == 1 || (shape.rank() == 2 && shape[1] == members[0].shape[1]), Error,
                       "fused member '", member.name, "' has shape ", shape.str(), ", but matrices with ",
                       members[0].shape.str(), "'s columns are needed");
    add(member);
  }
  return first;
}

template <class T>
void ParameterSet<T>::allocate(Runtime& runtime) {
  DELTAPORT_VALIDATE(!values_.defined(), Error, "parameters are allocated already");
  flat_size_ = (flat_size_ + alignment_elements - 1) / alignment_elements * alignment_elements;
  values_ = runtime.allocate_zero<T>("parameters", Shape{flat_size_});
  gradients_ = runtime.allocate_zero<T>("gradients", Shape{flat_size_});
}

template <class T>
void ParameterSet<T>::initialize(Runtime& runtime, std::uint64_t seed) {
  WorkScope scope(runtime, Work::other, "deltaport: initialize parameters");
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const ParameterInfo& info = infos_[i];
    for_each_index(
        runtime.compute(), "deltaport: initialize parameter", info.shape.size(),
        FillParameter<T>{info.init, seed, stream_of(info.name), value(static_cast<int>(i)).data()});
  }
}

template <class T>
void ParameterSet<T>::zero_gradients(Runtime& runtime) {
  WorkScope scope(runtime, Work::optimizer, "deltaport: zero gradients");
  set_zero(runtime.compute(), gradients_);
}

template <class T>
std::int64_t ParameterSet<T>::count() const {
  std::int64_t total = 0;
  for (const ParameterInfo& info : infos_) total += info.shape.size();
  return total;
}

template <class T>
Tensor<T> ParameterSet<T>::value(int index) const {
  const ParameterInfo& info = infos_.at(static_cast<std::size_t>(index));
  return Tensor<T>(values_.storage(), values_.data() + info.offset, info.shape);
}

template <class T>
Tensor<T> ParameterSet<T>::gradient(int index) const {
  const ParameterInfo& info = infos_.at(static_cast<std::size_t>(index));
  return Tensor<T>(gradients_.storage(), gradients_.data() + info.offset, info.shape);
}

template class ParameterSet<float>;
template class ParameterSet<double>;

}  // namespace deltaport
