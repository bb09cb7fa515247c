// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/context.hpp"
#include "deltaport/core/label.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport {

/// Rows of logits that exist at one time: at most `chunk_tokens`, and fewer where as many chunks of about the same size do
/// the same `tokens` (>= 0).
std::int64_t loss_rows(std::int64_t tokens, std::int64_t chunk_tokens);

/// Output layer and cross-entropy in one: logits = hidden W^T, loss = sum over valid tokens of
/// log(sum exp(logits)) - logits[label]. Works through chunks of tokens, so that no more than `chunk_tokens`
/// rows of logits ever exist; gradients are formed in the same pass, in place of the logits. Logits and gradients are
/// rounded to T, from products, and by a softmax, in Accumulate<T>. Rows of losses are summed in double in a fixed
/// order. Everything is enqueued on the compute stream.
///
/// Labels are on the device and cannot be refused here: a label outside [0, vocab) other than -100 makes the
/// loss NaN.
template <class T>
class LinearCrossEntropy {
 public:
  /// `weight` [vocab, hidden] is the tied embedding or a parameter of its own. Throws ConfigError unless
  /// chunk_tokens > 0.
  LinearCrossEntropy(Parameter<T> weight, std::int64_t chunk_tokens);

  /// hidden [T, hidden], labels int32 [T]; gradient_scale [1] is read on the device, rounded to T. Adds the loss sum to loss_sum [1], writes
  /// d_hidden [T, hidden] = gradient_scale d loss / d hidden (allocated when not given) and adds
  /// gradient_scale d loss / d W to W's gradient. Rows with label -100 get zero gradient, whatever their
  /// logits.
  void forward_backward(Context& context, const Tensor<T>& hidden, const Tensor<std::int32_t>& labels,
                        const Tensor<double>& gradient_scale, const Tensor<double>& loss_sum,
                        Tensor<T>& d_hidden) const;

  /// The same with a scale from the host; enqueues taking it to the device.
  void forward_backward(Context& context, const Tensor<T>& hidden, const Tensor<std::int32_t>& labels,
                        double gradient_scale, const Tensor<double>& loss_sum, Tensor<T>& d_hidden) const {
    const auto scale = context.runtime.template allocate<double>("gradient scale", Shape{1});
    fill(context.runtime.compute(), scale, gradient_scale);
    forward_backward(context, hidden, labels, scale, loss_sum, d_hidden);
  }

  /// Adds the loss sum to loss_sum [1]; no gradients.
  void evaluate(Context& context, const Tensor<T>& hidden, const Tensor<std::int32_t>& labels,
                const Tensor<double>& loss_sum) const;

  /// All logits of hidden [rows, hidden] as [rows, vocab]: for sampling, where rows are few.
  Tensor<Accumulate<T>> logits(Runtime& runtime, const Tensor<T>& hidden) const;

 private:
  void validate(const Tensor<T>& hidden, const Tensor<std::int32_t>& labels,
                const Tensor<double>& loss_sum) const;
  /// Gradients only where d_hidden is given.
  void run(Runtime& runtime, const Tensor<T>& hidden, const Tensor<std::int32_t>& labels,
           const Tensor<double>& scale, const Tensor<double>& loss_sum, const Tensor<T>& d_hidden) const;
  Parameter<T> weight_;
  std::int64_t chunk_tokens_;
};

}  // namespace deltaport
