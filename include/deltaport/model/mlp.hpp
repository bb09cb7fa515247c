// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/context.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport {

/// SwiGLU feed-forward layer (Shazeer, "GLU Variants Improve Transformer", 2020): down(silu(gate(x)) *
/// up(x)), without biases. x and y are [T, hidden_size]. Enqueued on the compute stream; outputs come from
/// the arena. Wrong shapes throw ShapeError.
template <class T>
class Mlp {
 public:
  /// Declares "<prefix>.gate_proj.weight" and "<prefix>.up_proj.weight", each [intermediate_size,
  /// hidden_size] and one fused block, and "<prefix>.down_proj.weight" [hidden_size, intermediate_size].
  Mlp(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config);

  /// In training mode saves, in group "mlp", x (shared) and gate and up [T, 2 intermediate_size]; their product is
  /// computed again.
  Tensor<T> forward(Context& context, const Tensor<T>& x) const;
  /// Returns dx and adds to the weights' gradients. Overwrites the saved gate and up with their gradients.
  Tensor<T> backward(Context& context, const Tensor<T>& dy) const;

 private:
  std::int64_t hidden_, inner_;
  std::string prefix_;
  Parameter<T> gate_up_, down_;
};

}  // namespace deltaport
