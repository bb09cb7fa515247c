// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
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

/// One named parameter inside the flat buffers.
struct ParameterInfo {
  std::string name;  ///< global, Hugging Face style: "model.layers.0.mlp.up_proj.weight"
  Shape shape;
  std::int64_t offset = 0;  ///< first element in the flat buffers
  bool decay = false;       ///< takes part in weight decay
  Initializer init;
};

/// All parameters of a model in one flat value buffer and one flat gradient buffer of the same layout: one
/// reduction, one norm, one optimizer pass. Parameters start at multiples of 64 elements, except the members
/// of a fused block, which follow each other without gaps so that one product serves them all. Padding is
/// zero and stays zero. Layers declare in their constructors; allocate() then creates the buffers. Gradients
/// accumulate.
template <class T>
class ParameterSet {
 public:
  /// Adds a parameter; returns its index. Throws Error for a name already taken or after allocate().
  int declare(const std::string& name, const Shape& shape, bool decay, Initializer init);
  /// Adds matrices [rows_i, columns] that form one contiguous matrix; returns the index of the first.
  int declare_fused(const std::vector<ParameterInfo>& members);

  /// Creates value and gradient buffers (zeroed) in the runtime's arena.
  void allocate(Runtime& runtime);
  /// Fills every value from (seed, name, element): the same for any rank and thread count.
  void initialize(Runtime& runtime, std::uint64_t seed);
  /// Enqueues setting all gradients to zero.
  void zero_gradients(Runtime& runtime);

  const std::vector<ParameterInfo>& infos() const { return infos_; }
  /// Number of parameters, padding left out.
  std::int64_t count() const;
  /// Elements of the flat buffers, padding included.
  std::int64_t flat_size() const { return flat_size_; }

  Tensor<T> value(int index) const;
  Tensor<T> gradient(int index) const;
  const Tensor<T>& flat_values() const { return values_; }
  const Tensor<T>& flat_gradients() const { return gradients_; }

 private:
  int add(ParameterInfo info);
  std::vector<ParameterInfo> infos_;
  std::int64_t flat_size_ = 0;
  Tensor<T> values_;
  Tensor<T> gradients_;
};

/// A layer's handle on one parameter (or on the first member of a fused block).
template <class T>
struct Parameter {
  const ParameterSet<T>* set = nullptr;
  int index = -1;
  Tensor<T> value() const { return set->value(index); }
  Tensor<T> gradient() const { return set->gradient(index); }
};

}  // namespace deltaport
