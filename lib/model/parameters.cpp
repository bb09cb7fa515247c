// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/parameters.hpp"

#include <algorithm>
#include <cmath>

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t alignment_elements = 64;

std::int64_t aligned(std::int64_t elements) {
  return (elements + alignment_elements - 1) / alignment_elements * alignment_elements;
}

// Draws in double and rounds once, so models of all types start from the same numbers. T is the masters'
// type: a value that has no exact rounded form, like the logarithm of a decay near 0, is never rounded before
// it is used.
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

template <class T>
struct RoundValues {
  const Accumulate<T>* masters;
  T* values;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { values[i] = static_cast<T>(masters[i]); }
};

}  // namespace

template <class T>
int ParameterSet<T>::add(ParameterInfo info) {
  DELTAPORT_VALIDATE(!values_.defined(), Error, "parameter '", info.name, "' declared after allocate()");
  for (const ParameterInfo& other : infos_)
    DELTAPORT_VALIDATE(other.name != info.name, Error, "parameter '", info.name, "' is declared twice");
  std::int64_t& size = info.kept == Kept::exact ? exact_size_ : rounded_size_;
  info.offset = size;
  size += info.shape.size();
  infos_.push_back(std::move(info));
  return static_cast<int>(infos_.size()) - 1;
}

template <class T>
int ParameterSet<T>::declare(const std::string& name, const Shape& shape, bool decay, Initializer init,
                             Kept kept) {
  return declare_fused({ParameterInfo{name, shape, 0, decay, init, kept}});
}

template <class T>
int ParameterSet<T>::declare_fused(const std::vector<ParameterInfo>& members) {
  DELTAPORT_VALIDATE(!members.empty(), Error, "a fused block needs members");
  const Kept kept = members[0].kept;
  std::int64_t& size = kept == Kept::exact ? exact_size_ : rounded_size_;
  size = aligned(size);
  const int first = static_cast<int>(infos_.size());
  for (const ParameterInfo& member : members) {
    const Shape& shape = member.shape;
    DELTAPORT_VALIDATE(members.size() == 1 || (shape.rank() == 2 && shape[1] == members[0].shape[1]), Error,
                       "fused member '", member.name, "' has shape ", shape.str(), ", but matrices with ",
                       members[0].shape.str(), "'s columns are needed");
    DELTAPORT_VALIDATE(member.kept == kept, Error, "fused members '", members[0].name, "' and '", member.name,
                       "' are kept in different types");
    add(member);
  }
  return first;
}

template <class T>
std::int64_t ParameterSet<T>::flat_size(Kept kept) const {
  return aligned(kept == Kept::exact ? exact_size_ : rounded_size_);
}

template <class T>
void ParameterSet<T>::allocate(Runtime& runtime, Purpose purpose) {
  using A = Accumulate<T>;
  DELTAPORT_VALIDATE(!values_.defined(), Error, "parameters are allocated already");
  rounded_size_ = aligned(rounded_size_);
  exact_size_ = aligned(exact_size_);
  for (ParameterInfo& info : infos_)
    if (info.kept == Kept::exact) info.offset += rounded_size_;
  if constexpr (shared) {
    values_ = runtime.allocate_zero<T>("parameters", Shape{flat_size()});
    masters_ = values_;
  } else {
    values_ = runtime.allocate_zero<T>("parameters", Shape{rounded_size_});
    if (purpose == Purpose::training)
      masters_ = runtime.allocate_zero<A>("master weights", Shape{flat_size()});
  }
  exact_ = masters_ ? masters_.rows(rounded_size_, flat_size())
                    : runtime.allocate_zero<A>("parameters in float32", Shape{exact_size_});
  if (purpose == Purpose::training) gradients_ = runtime.allocate_zero<A>("gradients", Shape{flat_size()});
}

template <class T>
void ParameterSet<T>::initialize(Runtime& runtime, std::uint64_t seed) {
  WorkScope scope(runtime, Work::other, "deltaport: initialize parameters");
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const ParameterInfo& info = infos_[i];
    for_each_index(runtime.compute(), "deltaport: initialize parameter", info.shape.size(),
                   FillParameter<Accumulate<T>>{info.init, seed, stream_of(info.name),
                                                master(static_cast<int>(i)).data()});
  }
  round_values(runtime);
}

template <class T>
void ParameterSet<T>::round_values([[maybe_unused]] Runtime& runtime) const {
  DELTAPORT_VALIDATE(masters_.defined(), Error,
                     "the parameters have no master weights; call allocate() for training first");
  if constexpr (!shared)
    for_each_index(runtime.compute(), "deltaport: round master weights", rounded_size_,
                   RoundValues<T>{masters_.data(), values_.data()});
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
  const ParameterInfo& p = info(index);
  DELTAPORT_VALIDATE(shared || p.kept == Kept::rounded, Error, "parameter '", p.name,
                     "' has no rounded value; layers read its master");
  return Tensor<T>(values_.storage(), values_.data() + p.offset, p.shape);
}

template <class T>
Tensor<Accumulate<T>> ParameterSet<T>::master(int index) const {
  const ParameterInfo& p = info(index);
  if (p.kept == Kept::exact)
    return Tensor<Accumulate<T>>(exact_.storage(), exact_.data() + (p.offset - rounded_size_), p.shape);
  DELTAPORT_VALIDATE(masters_.defined(), Error, "parameter '", p.name,
                     "' has no master weight in a model for inference");
  return Tensor<Accumulate<T>>(masters_.storage(), masters_.data() + p.offset, p.shape);
}

template <class T>
Tensor<Accumulate<T>> ParameterSet<T>::gradient(int index) const {
  DELTAPORT_VALIDATE(gradients_.defined(), Error, "a model for inference has no gradients");
  const ParameterInfo& p = info(index);
  return Tensor<Accumulate<T>>(gradients_.storage(), gradients_.data() + p.offset, p.shape);
}

template class ParameterSet<bfloat16>;
template class ParameterSet<float>;
template class ParameterSet<double>;

}  // namespace deltaport
