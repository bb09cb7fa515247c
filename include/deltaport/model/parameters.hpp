// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "deltaport/core/runtime.hpp"
#include "deltaport/core/tensor.hpp"

namespace deltaport {

/// How a parameter starts.
struct Initializer {
  enum class Kind { zeros, ones, normal, log_uniform, inverse_softplus_log_uniform };
  Kind kind = Kind::zeros;
  double a = 0.0;  ///< normal: standard deviation; log_uniform: log U(a, b); inverse_softplus_...: dt =
                   ///< exp(U(ln a, ln b))
  double b = 0.0;
};

/// Type that layers read a parameter in.
enum class Kept {
  rounded,  ///< T, rounded from the master weight
  exact     ///< Accumulate<T>: the master weight itself, for what published checkpoints keep in float32
};

/// One named parameter inside the flat buffers.
struct ParameterInfo {
  std::string name;  ///< global, Hugging Face style: "model.layers.0.mlp.up_proj.weight"
  Shape shape;
  std::int64_t offset = 0;  ///< first element in the flat buffers; final after allocate()
  bool decay = false;       ///< takes part in weight decay
  Initializer init;
  Kept kept = Kept::rounded;
};

/// What a model's memory is for.
enum class Purpose {
  training,  ///< values, masters and gradients
  inference  ///< what forward reads: no gradients, and of the masters only those of exact parameters
};

/// All parameters of a model in flat buffers of one layout: one reduction, one norm, one optimizer pass.
/// Masters and gradients are Accumulate<T>; values, what layers compute with, are T. Where that is the same
/// type, values and masters share memory. Parameters start at multiples of 64 elements, except the members of
/// a fused block, which follow each other without gaps so that one product serves them all. Exact parameters
/// come last: the buffer of values ends before them, and a model for inference needs no other masters. Padding
/// is zero and stays zero. Layers declare in their constructors; allocate() then creates the buffers.
/// Gradients accumulate over micro-batches, without ever being rounded to T.
template <class T>
class ParameterSet {
 public:
  /// Adds a parameter; returns its index. Throws Error for a name already taken or after allocate().
  int declare(const std::string& name, const Shape& shape, bool decay, Initializer init,
              Kept kept = Kept::rounded);
  /// Adds matrices [rows_i, columns] that form one contiguous matrix; returns the index of the first. Throws
  /// Error when they are not kept alike.
  int declare_fused(const std::vector<ParameterInfo>& members);

  /// Creates the buffers (zeroed) in the runtime's arena.
  void allocate(Runtime& runtime, Purpose purpose = Purpose::training);
  /// Fills every master from (seed, name, element), the same for any rank and thread count, and rounds it to
  /// the values. Needs Purpose::training (Error).
  void initialize(Runtime& runtime, std::uint64_t seed);
  /// Enqueues values = masters, rounded to nearest even. Does nothing where they share memory. Needs
  /// Purpose::training (Error).
  void round_values(Runtime& runtime) const;
  /// Enqueues setting all gradients to zero.
  void zero_gradients(Runtime& runtime);

  const std::vector<ParameterInfo>& infos() const { return infos_; }
  /// Number of parameters, padding left out.
  std::int64_t count() const;
  /// Elements of the flat buffers of masters and gradients, padding included.
  std::int64_t flat_size() const { return flat_size(Kept::rounded) + flat_size(Kept::exact); }
  /// Elements of the rounded parameters, which come first, or of the exact ones; padding included. Where T is
  /// its own accumulation type the values have all flat_size() elements.
  std::int64_t flat_size(Kept kept) const;

  /// Throws Error for an exact parameter, unless T is its own accumulation type.
  Tensor<T> value(int index) const;
  /// Throws Error for a rounded parameter of a model for inference.
  Tensor<Accumulate<T>> master(int index) const;
  Tensor<Accumulate<T>> gradient(int index) const;
  const Tensor<T>& flat_values() const { return values_; }
  /// Empty in a model for inference, unless T is its own accumulation type.
  const Tensor<Accumulate<T>>& flat_masters() const { return masters_; }
  const Tensor<Accumulate<T>>& flat_gradients() const { return gradients_; }

 private:
  static constexpr bool shared = std::is_same_v<T, Accumulate<T>>;
  int add(ParameterInfo info);
  const ParameterInfo& info(int index) const { return infos_.at(static_cast<std::size_t>(index)); }
  std::vector<ParameterInfo> infos_;
  std::int64_t rounded_size_ = 0, exact_size_ = 0;  // not padded at the end before allocate()
  Tensor<T> values_;
  Tensor<Accumulate<T>> masters_;
  Tensor<Accumulate<T>> exact_;  // the masters of the exact parameters
  Tensor<Accumulate<T>> gradients_;
};

/// A layer's handle on one parameter (or on the first member of a fused block).
template <class T>
struct Parameter {
  const ParameterSet<T>* set = nullptr;
  int index = -1;
  Tensor<T> value() const { return set->value(index); }
  Tensor<Accumulate<T>> master() const { return set->master(index); }
  Tensor<Accumulate<T>> gradient() const { return set->gradient(index); }
};

}  // namespace deltaport
