// SPDX-License-Identifier: Apache-2.0
#include "deltaport/optim/adamw.hpp"

#include <cmath>
#include <vector>

#include "deltaport/core/parallel.hpp"
#include "optim/adamw_kernels.hpp"

namespace deltaport {

namespace {

using optim::block_elements;

void check(const OptimizerConfig& c, double grad_clip) {
  DELTAPORT_VALIDATE(c.beta1 >= 0.0 && c.beta1 < 1.0, ConfigError, "optimizer.beta1 must be in [0, 1), not ",
                     c.beta1);
  DELTAPORT_VALIDATE(c.beta2 >= 0.0 && c.beta2 < 1.0, ConfigError, "optimizer.beta2 must be in [0, 1), not ",
                     c.beta2);
  DELTAPORT_VALIDATE(c.eps > 0.0 && std::isfinite(c.eps), ConfigError, "optimizer.eps must be positive, not ",
                     c.eps);
  DELTAPORT_VALIDATE(c.weight_decay >= 0.0 && std::isfinite(c.weight_decay), ConfigError,
                     "optimizer.weight_decay must be >= 0, not ", c.weight_decay);
  DELTAPORT_VALIDATE(grad_clip >= 0.0 && std::isfinite(grad_clip), ConfigError,
                     "train.grad_clip must be >= 0 (0: off), not ", grad_clip);
}

}  // namespace

template <class T>
AdamW<T>::AdamW(Runtime& runtime, const ParameterSet<T>& parameters, const OptimizerConfig& config,
                double grad_clip)
    : parameters_(&parameters), config_(config), grad_clip_(grad_clip) {
  check(config, grad_clip);
  DELTAPORT_VALIDATE(parameters.flat_values().defined(), Error, "AdamW: allocate the parameters first");
  const Shape shape{parameters.flat_size()};
  DELTAPORT_VALIDATE(parameters.flat_masters().defined() && parameters.flat_gradients().defined(), Error,
                     "AdamW: the parameters were allocated for inference");
  exp_avg_ = runtime.allocate_zero<State>("optimizer exp_avg", shape);
  exp_avg_sq_ = runtime.allocate_zero<State>("optimizer exp_avg_sq", shape);
  scalars_ = runtime.allocate_zero<Scalars>("optimizer scalars", Shape{1});
  build_decay_flags(runtime);
}

template <class T>
void AdamW<T>::build_decay_flags(Runtime& runtime) {
  enum : std::uint8_t { off, on, unset };
  const std::int64_t blocks = parameters_->flat_size() / block_elements;
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(blocks), unset);
  for (const ParameterInfo& info : parameters_->infos()) {
    const std::int64_t end = info.offset + info.shape.size();
    for (std::int64_t b = info.offset / block_elements; b * block_elements < end; ++b) {
      std::uint8_t& flag = flags[static_cast<std::size_t>(b)];
      const std::uint8_t wanted = info.decay ? on : off;
      DELTAPORT_VALIDATE(
          flag == unset || flag == wanted, Error, "parameter '", info.name,
          "' shares 64 elements with one of the other weight decay; give a fused block one setting");
      flag = wanted;
    }
  }
  decay_flags_ =
      from_vector(runtime.compute(), runtime.arena(), "optimizer decay flags", Shape{blocks}, flags);
}

template <class T>
void AdamW<T>::set_rate(Runtime& runtime, double lr) {
  DELTAPORT_VALIDATE(lr >= 0.0 && std::isfinite(lr), ConfigError, "AdamW: lr must be finite and >= 0, not ",
                     lr);
  require_not_recording("deltaport: adamw rate",
                        "the learning rate of this step would be that of all replays");
  WorkScope scope(runtime, Work::optimizer, "deltaport: adamw rate");
  for_each_index(runtime.compute(), "deltaport: adamw rate", 1, optim::SetRate<Scalars>{scalars_.data(), lr});
}

template <class T>
void AdamW<T>::update(Runtime& runtime, const Tensor<double>& norm) {
  DELTAPORT_VALIDATE(norm.size() == 1, ShapeError, "AdamW: norm must be [1], as global_norm gives it");
  WorkScope scope(runtime, Work::optimizer, "deltaport: adamw");
  const ExecutionSpace& exec = runtime.compute();
  Scalars* scalars = scalars_.data();
  for_each_index(exec, "deltaport: adamw scalars", 1,
                 optim::PrepareStep<Scalars>{scalars, norm.data(), config_.beta1, config_.beta2,
                                             config_.weight_decay, grad_clip_});
  const optim::AdamWUpdate<T, Scalars> update{
      scalars,
      parameters_->flat_masters().data(),
      exp_avg_.data(),
      exp_avg_sq_.data(),
      parameters_->flat_gradients().data(),
      parameters_->flat_values().data(),
      parameters_->flat_size(Kept::rounded),
      decay_flags_.data(),
      static_cast<State>(config_.beta1),
      static_cast<State>(1.0 - config_.beta1),
      static_cast<State>(config_.beta2),
      static_cast<State>(1.0 - config_.beta2),
      static_cast<State>(config_.eps),
  };
  const std::int64_t n = parameters_->flat_size();
  for_each_index(exec, "deltaport: adamw update", runs_on_host ? n / block_elements : n, update);
}

template <class T>
std::int64_t AdamW<T>::updates(Runtime& runtime) const {
  return static_cast<std::int64_t>(to_vector(runtime.compute(), scalars_)[0].updates);
}

template <class T>
void AdamW<T>::set_updates(Runtime& runtime, std::int64_t updates) {
  DELTAPORT_VALIDATE(updates >= 0, Error, "AdamW: ", updates, " updates");
  std::vector<Scalars> host = to_vector(runtime.compute(), scalars_);
  host[0].updates = static_cast<double>(updates);
  copy_from_host(runtime.compute(), scalars_, host.data());
}

template class AdamW<bfloat16>;
template class AdamW<float>;
template class AdamW<double>;

}  // namespace deltaport
