// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/core/context.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport {

/// Zero-centred root-mean-square norm of each row (Zhang and Sennrich, "Root Mean Square Layer
/// Normalization", 2019; the weight is stored as its distance from one, as Qwen3.5 does):
///   y = x rsqrt(mean(x^2) + eps) (1 + w)
/// x and y are [rows, size]; statistics are kept in Accumulate<T>. Everything is enqueued on the compute
/// stream; outputs come from the arena. Wrong shapes throw ShapeError.
template <class T>
class RmsNorm {
 public:
  /// Declares "<prefix>.weight" [size], zeros, without weight decay.
  RmsNorm(ParameterSet<T>& parameters, const std::string& prefix, std::int64_t size, double eps);

  /// In training mode saves x and one reciprocal root per row.
  Tensor<T> forward(Context& context, const Tensor<T>& x) const;

  struct Residual {
    Tensor<T> sum;         ///< x + delta: the residual stream
    Tensor<T> normalised;  ///< the norm of sum
  };
  /// Adds and normalises in one pass. Saves `sum` (shared, not copied) and one reciprocal root per row.
  Residual forward_residual(Context& context, const Tensor<T>& x, const Tensor<T>& delta) const;

  /// Gradient of the norm's input, plus `d_residual` when given: the gradient that reaches the input by the
  /// residual path. Adds to the weight's gradient. After forward_residual the result is the gradient of x and
  /// of delta alike.
  Tensor<T> backward(Context& context, const Tensor<T>& dy, const Tensor<T>& d_residual = {}) const;

  std::int64_t size() const { return size_; }
  Parameter<T> weight() const { return weight_; }

 private:
  Residual run(Context& context, const Tensor<T>& x, const Tensor<T>& delta) const;
  std::int64_t size_;
  double eps_;
  std::string prefix_;
  Parameter<T> weight_;
};

/// x += delta on the compute stream. Sizes must agree (ShapeError).
template <class T>
void add_in_place(Runtime& runtime, const Tensor<T>& x, const Tensor<T>& delta);

}  // namespace deltaport
