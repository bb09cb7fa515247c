// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/context.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport {

/// Rows of a table by token id. Enqueued on the compute stream.
template <class T>
class Embedding {
 public:
  /// Declares "<prefix>.weight" [vocab_size, hidden_size], normal(0, initializer_range); weight decay
  /// applies.
  Embedding(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config);

  /// tokens int32 [T] -> [T, hidden_size] from the arena. Ids are on the device and so cannot be refused
  /// here: an id outside [0, vocab_size) gives a row of NaN, which the training loop reports as a non-finite
  /// loss. In training mode saves the tokens.
  Tensor<T> forward(Context& context, const Tensor<std::int32_t>& tokens) const;

  /// Adds dy [T, hidden_size] to the rows of the table's gradient, in token order: the same bits for any
  /// thread count. Ids outside the vocabulary are left out.
  void backward(Context& context, const Tensor<T>& dy) const;

  /// The table, for a tied output layer.
  Parameter<T> weight() const { return weight_; }

 private:
  std::int64_t vocab_, hidden_;
  Parameter<T> weight_;
};

}  // namespace deltaport
