// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/gdn2_mixer.hpp"

#include "deltaport/model/gates.hpp"
#include "model/saved_core.hpp"

namespace deltaport {
namespace {

// Order of the gates' projections.
constexpr std::size_t f_gate = 0, b_gate = 1, w_gate = 2;

}  // namespace

template <class T>
Gdn2Mixer<T>::Gdn2Mixer(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config,
                        recurrence::Implementation implementation, NormOutput norm_output,
                        CoreInputs core_inputs, Preparation preparation)
    : Base(parameters, prefix, config, implementation, norm_output, core_inputs, preparation,
           {{"f", config.linear.num_key_heads * config.linear.key_head_dim},
            {"b", config.linear.num_key_heads * config.linear.key_head_dim},
            {"w", config.linear.num_value_heads * config.linear.value_head_dim}}) {
  a_log_ = {&parameters, parameters.declare(prefix + ".A_log", Shape{this->shape().key_heads}, false,
                                            {Initializer::Kind::log_uniform, 1.0, 16.0}, Kept::exact)};
  dt_bias_ = {&parameters,
              parameters.declare(prefix + ".dt_bias", Shape{this->shape().keys()}, false,
                                 {Initializer::Kind::inverse_softplus_log_uniform, 0.001, 0.1}, Kept::exact)};
}

template <class T>
recurrence::Gdn2Inputs<T> Gdn2Mixer<T>::core_inputs(Runtime& runtime, const Tensor<T>& projections,
                                                    const QkvConvResult<T>& qkv,
                                                    const Sequences& sequences) const {
  recurrence::Gdn2Inputs<T> inputs;
  inputs.q = core::add_batch(qkv.q);
  inputs.k = core::add_batch(qkv.k);
  inputs.v = core::add_batch(qkv.v);
  inputs.cu_seqlens = sequences.cu_seqlens;
  add_gates(runtime, projections, inputs);
  return inputs;
}

template <class T>
Gdn2Gates<T> Gdn2Mixer<T>::gates(Runtime& runtime, const Tensor<T>& projections) const {
  return gdn2_gates_forward(runtime, this->shape(), this->gate(f_gate, projections),
                            this->gate(b_gate, projections), this->gate(w_gate, projections), a_log_.master(),
                            dt_bias_.master());
}

template <class T>
void Gdn2Mixer<T>::add_gates(Runtime& runtime, const Tensor<T>& projections,
                             recurrence::Gdn2Inputs<T>& inputs) const {
  const Gdn2Gates<T> gates = this->gates(runtime, projections);
  inputs.g = core::add_batch(gates.g);
  inputs.b = core::add_batch(gates.b);
  inputs.w = core::add_batch(gates.w);
}

template <class T>
Tensor<T> Gdn2Mixer<T>::core_forward(Context& context, const Tensor<T>& projections, QkvConvResult<T> qkv,
                                     const Sequences& sequences) {
  Runtime& runtime = context.runtime;
  const auto inputs = core_inputs(runtime, projections, qkv, sequences);
  qkv = {};
  auto result = recurrence::gdn2_forward(runtime, inputs, this->options(context));
  if (context.training()) {
    const auto& saved = result.saved;
    saved_options_ = saved.options;
    switch (this->core_inputs_kept()) {
      case CoreInputs::recompute:
        core::save(context.saved, saved.g_cumsum, saved.scores, saved.inverse, saved.wide_scores,
                   saved.wide_inverse, saved.prepared);
        break;
      case CoreInputs::recompute_gates:
        core::save(context.saved, saved.inputs.q, saved.inputs.k, saved.inputs.v, saved.g_cumsum,
                   saved.scores, saved.inverse, saved.wide_scores, saved.wide_inverse, saved.prepared);
        break;
      case CoreInputs::save:
        core::save(context.saved, saved.inputs.q, saved.inputs.k, saved.inputs.v, saved.inputs.g,
                   saved.inputs.b, saved.inputs.w, saved.g_cumsum, saved.scores, saved.inverse,
                   saved.wide_scores, saved.wide_inverse, saved.prepared);
    }
  }
  return result.o;
}

template <class T>
typename LinearMixer<T>::CoreGradients Gdn2Mixer<T>::core_backward(Context& context,
                                                                   const Tensor<T>& projections,
                                                                   const Tensor<T>& d_o,
                                                                   const Sequences& sequences,
                                                                   const Tensor<T>& d_projections) {
  Runtime& runtime = context.runtime;
  recurrence::Gdn2Saved<T> saved;
  switch (this->core_inputs_kept()) {
    case CoreInputs::recompute:
      core::take(context.saved, saved.g_cumsum, saved.scores, saved.inverse, saved.wide_scores,
                 saved.wide_inverse, saved.prepared);
      saved.inputs =
          core_inputs(runtime, projections, this->convolved_qkv(runtime, projections, sequences), sequences);
      break;
    case CoreInputs::recompute_gates:
      core::take(context.saved, saved.inputs.q, saved.inputs.k, saved.inputs.v, saved.g_cumsum, saved.scores,
                 saved.inverse, saved.wide_scores, saved.wide_inverse, saved.prepared);
      add_gates(runtime, projections, saved.inputs);
      break;
    case CoreInputs::save:
      core::take(context.saved, saved.inputs.q, saved.inputs.k, saved.inputs.v, saved.inputs.g,
                 saved.inputs.b, saved.inputs.w, saved.g_cumsum, saved.scores, saved.inverse,
                 saved.wide_scores, saved.wide_inverse, saved.prepared);
  }
  saved.inputs.cu_seqlens = sequences.cu_seqlens;
  saved.options = saved_options_;
  recurrence::Gdn2Gradients<T> d = recurrence::gdn2_backward(runtime, saved, core::add_batch(d_o));
  gdn2_gates_backward(runtime, this->shape(), this->gate(f_gate, projections), saved.inputs.b, saved.inputs.w,
                      a_log_.master(), dt_bias_.master(), {d.dg, d.db, d.dw},
                      this->gate(f_gate, d_projections), this->gate(b_gate, d_projections),
                      this->gate(w_gate, d_projections), a_log_.gradient(), dt_bias_.gradient());
  return {d.dq, d.dk, d.dv};
}

template <class T>
Tensor<T> Gdn2Mixer<T>::core_step(Runtime& runtime, const Tensor<T>& projections, const QkvConvResult<T>& qkv,
                                  const Tensor<Accumulate<T>>& state) {
  const Gdn2Gates<T> gates = this->gates(runtime, projections);
  recurrence::Gdn2Inputs<T> inputs;
  inputs.q = core::add_time(qkv.q);
  inputs.k = core::add_time(qkv.k);
  inputs.v = core::add_time(qkv.v);
  inputs.g = core::add_time(gates.g);
  inputs.b = core::add_time(gates.b);
  inputs.w = core::add_time(gates.w);
  return recurrence::gdn2_step(runtime, inputs, state);
}

template <class T>
Tensor<T> Gdn2Mixer<T>::core_prefill(Context& context, const Tensor<T>& projections,
                                     const QkvConvResult<T>& qkv, const Sequences& sequences,
                                     const Tensor<Accumulate<T>>& state) {
  return core::forward_from(context, state, core_inputs(context.runtime, projections, qkv, sequences),
                            this->options(context),
                            [](Runtime& runtime, const auto& inputs, const auto& options) {
                              return recurrence::gdn2_forward(runtime, inputs, options);
                            });
}

template class Gdn2Mixer<bfloat16>;
template class Gdn2Mixer<float>;
template class Gdn2Mixer<double>;

}  // namespace deltaport
