// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/runtime.hpp"
#include "deltaport/core/tensor.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport {

/// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR
/// 2019), over the flat buffers of a parameter set in one pass. With t the number of updates so far, this one
/// counted, and c = min(1, grad_clip / (norm + 1e-6)) (1 when grad_clip is 0):
///
///   g = c gradient
///   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
///   w = w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) - lr weight_decay w
///
/// The last term applies to parameters with ParameterInfo::decay only. Gradients, moments and the weights w are
/// Accumulate<T>: the parameters' masters. Where T is bfloat16 the same pass rounds the new masters to the values that
/// layers compute with (to nearest even). T is bfloat16, float or double.
template <class T>
class AdamW {
 public:
  using State = Accumulate<T>;

  /// Allocates and zeroes the moments. `parameters` must be allocated and outlive this. Throws ConfigError
  /// for constants outside their ranges and Error when a decayed and an undecayed parameter share a block of
  /// 64 elements.
  AdamW(Runtime& runtime, const ParameterSet<T>& parameters, const OptimizerConfig& config, double grad_clip);

  /// Enqueues one update from the accumulated gradients. `norm` (double [1], from global_norm) is read on the
  /// device: when it is NaN or infinite nothing changes, neither weights nor moments nor the count of
  /// updates. Enqueue-only: no copies, no fences, no allocation.
  void step(Runtime& runtime, double lr, const Tensor<double>& norm) {
    set_rate(runtime, lr);
    update(runtime, norm);
  }
  /// The two halves of step(). set_rate() takes the learning rate to the device; it is a value of the host and so
  /// cannot be captured (throws CaptureError). update() reads it there: once captured, it serves every step.
  void set_rate(Runtime& runtime, double lr);
  void update(Runtime& runtime, const Tensor<double>& norm);

  /// Updates done so far (t); skipped ones do not count. Fences the compute stream.
  std::int64_t updates(Runtime& runtime) const;
  /// Sets t, for resuming. Fences the compute stream.
  void set_updates(Runtime& runtime, std::int64_t updates);

  /// First and second moments, laid out like ParameterSet::flat_masters().
  const Tensor<State>& exp_avg() const { return exp_avg_; }
  const Tensor<State>& exp_avg_sq() const { return exp_avg_sq_; }
  /// ParameterSet::flat_masters(), in the same layout.
  const Tensor<State>& masters() const { return parameters_->flat_masters(); }

  /// What changes from step to step, kept on the device so that a captured step need not be captured again.
  struct Scalars {
    double lr;
    double updates;
    double gradient_scale;  ///< clip coefficient
    double step_size;       ///< lr / (1 - beta1^t)
    double root_bias;       ///< 1 / sqrt(1 - beta2^t)
    double decay_rate;      ///< lr weight_decay
    double skip;            ///< 1 when the norm was not finite
  };

 private:
  void build_decay_flags(Runtime& runtime);

  const ParameterSet<T>* parameters_;
  OptimizerConfig config_;
  double grad_clip_;
  Tensor<State> exp_avg_;
  Tensor<State> exp_avg_sq_;
  Tensor<std::uint8_t> decay_flags_;  // [flat_size / 64]
  Tensor<Scalars> scalars_;           // [1]
};

}  // namespace deltaport
