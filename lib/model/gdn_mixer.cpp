// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/gdn_mixer.hpp"

#include "deltaport/model/gates.hpp"
#include "model/saved_core.hpp"

namespace deltaport {
namespace {

// Order of the gates' projections.
constexpr std::size_t b_gate = 0, a_gate = 1;

}  // namespace

template <class T>
GdnMixer<T>::GdnMixer(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config,
                      recurrence::Implementation implementation, NormOutput norm_output,
                      CoreInputs core_inputs, Preparation preparation)
    : Base(parameters, prefix, config, implementation, norm_output, core_inputs, preparation,
           {{"b", config.linear.num_value_heads}, {"a", config.linear.num_value_heads}}) {
  const Shape heads{this->shape().value_heads};
  a_log_ = {&parameters, parameters.declare(prefix + ".A_log", heads, false,
                                            {Initializer::Kind::log_uniform, 0.01, 16.0}, Kept::exact)};
  dt_bias_ = {&parameters,
              parameters.declare(prefix + ".dt_bias", heads, false, {Initializer::Kind::ones}, Kept::exact)};
}

template <class T>
recurrence::GdnInputs<T> GdnMixer<T>::core_inputs(Runtime& runtime, const Tensor<T>& projections,
                                                  const QkvConvResult<T>& qkv,
                                                  const Sequences& sequences) const {
  const GdnGates<T> gates =
      gdn_gates_forward(runtime, this->gate(b_gate, projections), this->gate(a_gate, projections),
                        a_log_.master(), dt_bias_.master());
  recurrence::GdnInputs<T> inputs;
  inputs.q = core::add_batch(qkv.q);
  inputs.k = core::add_batch(qkv.k);
  inputs.v = core::add_batch(qkv.v);
  inputs.g = core::add_batch(gates.g);
  inputs.beta = core::add_batch(gates.beta);
  inputs.cu_seqlens = sequences.cu_seqlens;
  return inputs;
}

template <class T>
Tensor<T> GdnMixer<T>::core_forward(Context& context, const Tensor<T>& projections, QkvConvResult<T> qkv,
                                    const Sequences& sequences) {
  Runtime& runtime = context.runtime;
  const auto inputs = core_inputs(runtime, projections, qkv, sequences);
  qkv = {};
  auto result = recurrence::gdn_forward(runtime, inputs, this->options(context));
  if (context.training()) {
    const auto& saved = result.saved;
    saved_options_ = saved.options;
    if (this->core_inputs_kept() == CoreInputs::recompute)
      core::save(context.saved, saved.g_cumsum, saved.inverse, saved.wide_inverse, saved.prepared);
    else
      core::save(context.saved, saved.inputs.q, saved.inputs.k, saved.inputs.v, saved.inputs.g,
                 saved.inputs.beta, saved.g_cumsum, saved.inverse, saved.wide_inverse, saved.prepared);
  }
  return result.o;
}

template <class T>
typename LinearMixer<T>::CoreGradients GdnMixer<T>::core_backward(Context& context,
                                                                  const Tensor<T>& projections,
                                                                  const Tensor<T>& d_o,
                                                                  const Sequences& sequences,
                                                                  const Tensor<T>& d_projections) {
  Runtime& runtime = context.runtime;
  recurrence::GdnGradients<T> d;
  {
    recurrence::GdnSaved<T> saved;
    if (this->core_inputs_kept() == CoreInputs::recompute) {
      core::take(context.saved, saved.g_cumsum, saved.inverse, saved.wide_inverse, saved.prepared);
      saved.inputs =
          core_inputs(runtime, projections, this->convolved_qkv(runtime, projections, sequences), sequences);
    } else {
      core::take(context.saved, saved.inputs.q, saved.inputs.k, saved.inputs.v, saved.inputs.g,
                 saved.inputs.beta, saved.g_cumsum, saved.inverse, saved.wide_inverse, saved.prepared);
      saved.inputs.cu_seqlens = sequences.cu_seqlens;
    }
    saved.options = saved_options_;
    d = recurrence::gdn_backward(runtime, saved, core::add_batch(d_o));
  }
  gdn_gates_backward(runtime, this->gate(b_gate, projections), this->gate(a_gate, projections),
                     a_log_.master(), dt_bias_.master(), d.dg, d.dbeta, this->gate(b_gate, d_projections),
                     this->gate(a_gate, d_projections), a_log_.gradient(), dt_bias_.gradient());
  return {d.dq, d.dk, d.dv};
}

template <class T>
Tensor<T> GdnMixer<T>::core_step(Runtime& runtime, const Tensor<T>& projections, const QkvConvResult<T>& qkv,
                                 const Tensor<Accumulate<T>>& state) {
  const GdnGates<T> gates =
      gdn_gates_forward(runtime, this->gate(b_gate, projections), this->gate(a_gate, projections),
                        a_log_.master(), dt_bias_.master());
  recurrence::GdnInputs<T> inputs;
  inputs.q = core::add_time(qkv.q);
  inputs.k = core::add_time(qkv.k);
  inputs.v = core::add_time(qkv.v);
  inputs.g = core::add_time(gates.g);
  inputs.beta = core::add_time(gates.beta);
  return recurrence::gdn_step(runtime, inputs, state);
}

template <class T>
Tensor<T> GdnMixer<T>::core_prefill(Context& context, const Tensor<T>& projections,
                                    const QkvConvResult<T>& qkv, const Sequences& sequences,
                                    const Tensor<Accumulate<T>>& state) {
  return core::forward_from(context, state, core_inputs(context.runtime, projections, qkv, sequences),
                            this->options(context),
                            [](Runtime& runtime, const auto& inputs, const auto& options) {
                              return recurrence::gdn_forward(runtime, inputs, options);
                            });
}

template class GdnMixer<bfloat16>;
template class GdnMixer<float>;
template class GdnMixer<double>;

}  // namespace deltaport
