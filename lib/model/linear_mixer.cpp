// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/linear_mixer.hpp"

#include <cmath>

#include "deltaport/core/gemm.hpp"
#include "deltaport/model/gated_norm.hpp"

namespace deltaport {

template <class T>
LinearMixer<T>::LinearMixer(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config,
                            recurrence::Implementation implementation, NormOutput norm_output,
                            CoreInputs core_inputs, Preparation preparation,
                            const std::vector<GateProjection>& gates)
    : prefix_(prefix),
      shape_(QkvShape::of(config.linear)),
      hidden_(config.hidden_size),
      conv_kernel_(config.linear.conv_kernel),
      chunk_size_(static_cast<int>(config.linear.chunk_size)),
      eps_(config.rms_norm_eps),
      implementation_(implementation),
      norm_output_(norm_output),
      core_inputs_(core_inputs),
      preparation_(preparation),
      gates_(gates) {
  DELTAPORT_VALIDATE(conv_kernel_ >= 1 && conv_kernel_ <= 4, ConfigError,
                     "model.linear.conv_kernel must be 1 to 4, got ", conv_kernel_);
  const double deviation = config.initializer_range;
  std::vector<ParameterInfo> members;
  width_ = 0;
  const auto add = [&](const std::string& name, std::int64_t rows) {
    members.push_back({prefix + ".in_proj_" + name + ".weight",
                       Shape{rows, hidden_},
                       0,
                       true,
                       {Initializer::Kind::normal, deviation}});
    width_ += rows;
  };
  add("qkv", shape_.channels());
  add("z", shape_.values());
  for (const GateProjection& gate : gates_) add(gate.name, gate.rows);
  in_proj_ = {&parameters, parameters.declare_fused(members)};
  // The variance of U(-1/sqrt(W), 1/sqrt(W)), the usual start of a depthwise convolution.
  const double conv_deviation = 1.0 / std::sqrt(3.0 * static_cast<double>(conv_kernel_));
  conv_ = {&parameters,
           parameters.declare(prefix + ".conv1d.weight", Shape{shape_.channels(), 1, conv_kernel_}, false,
                              {Initializer::Kind::normal, conv_deviation})};
  norm_ = {&parameters, parameters.declare(prefix + ".norm.weight", Shape{shape_.value_dim}, false,
                                           {Initializer::Kind::ones}, Kept::exact)};
  out_proj_ = {&parameters, parameters.declare(prefix + ".out_proj.weight", Shape{hidden_, shape_.values()},
                                               true, {Initializer::Kind::normal, deviation})};
}

template <class T>
ColumnSlice<T> LinearMixer<T>::gate(std::size_t i, const Tensor<T>& projections) const {
  std::int64_t begin = shape_.channels() + shape_.values();
  for (std::size_t before = 0; before < i; ++before) begin += gates_[before].rows;
  return {projections, begin, gates_[i].rows};
}

template <class T>
recurrence::Options LinearMixer<T>::options(const Context& context) const {
  recurrence::Options options;
  options.chunk_size = chunk_size_;
  options.implementation = implementation_;
  options.save_for_backward = context.training();
  options.keep = preparation_ == Preparation::save ? recurrence::Keep::preparation : recurrence::Keep::inputs;
  return options;
}

template <class T>
void LinearMixer<T>::validate(const char* what, const Tensor<T>& x) const {
  DELTAPORT_VALIDATE(x.rank() == 2 && x.extent(1) == hidden_, ShapeError, prefix_, ": ", what,
                     " must be [tokens, ", hidden_, "], got ", x.shape().str());
}

template <class T>
Tensor<T> LinearMixer<T>::project(Runtime& runtime, const Tensor<T>& x) const {
  const std::int64_t rows = x.extent(0);
  const Tensor<T> projections = runtime.allocate<T>("mixer projections", Shape{rows, width_});
  linear_forward<T>(runtime, rows, hidden_, width_, x.data(), hidden_, in_proj_.value().data(),
                    projections.data(), width_);
  return projections;
}

template <class T>
QkvConvResult<T> LinearMixer<T>::convolved_qkv(Runtime& runtime, const Tensor<T>& projections,
                                               const Sequences& sequences) const {
  return qkv_conv_forward(runtime, shape_, qkv(projections), conv_.value(), sequences.positions);
}

template <class T>
Tensor<T> LinearMixer<T>::project_out(Runtime& runtime, const Tensor<T>& y) const {
  const std::int64_t rows = y.extent(0);
  const Tensor<T> out = runtime.allocate<T>("mixer output", Shape{rows, hidden_});
  linear_forward<T>(runtime, rows, shape_.values(), hidden_, y.data(), shape_.values(),
                    out_proj_.value().data(), out.data(), hidden_);
  return out;
}

template <class T>
Tensor<T> LinearMixer<T>::forward(Context& context, const Tensor<T>& x, const Sequences& sequences) {
  validate("x", x);
  Runtime& runtime = context.runtime;
  const std::int64_t rows = x.extent(0);
  const Tensor<T> projections = project(runtime, x);
  QkvConvResult<T> inputs = convolved_qkv(runtime, projections, sequences);
  if (context.training()) {
    context.saved.save(x);
    context.saved.save(inputs.rstd);
  }
  const Tensor<T> o = core_forward(context, projections, std::move(inputs), sequences)
                          .reshape(Shape{rows, shape_.value_heads, shape_.value_dim});
  const GatedNormResult<T> gated = gated_norm_forward(runtime, o, z(projections), norm_.master(), eps_);
  if (context.training()) {
    // Backward needs z before it needs the recurrence's tensors, so the projections are saved after them.
    context.saved.open("norm_out");
    context.saved.save(projections);
    context.saved.save(o);
    context.saved.save(gated.rstd);
    if (norm_output_ == NormOutput::save) context.saved.save(gated.y);
    context.saved.commit();
  }
  return project_out(runtime, gated.y);
}

template <class T>
Tensor<T> LinearMixer<T>::backward(Context& context, const Tensor<T>& dy, const Sequences& sequences) {
  validate("dy", dy);
  Runtime& runtime = context.runtime;
  const std::int64_t rows = dy.extent(0);
  Tensor<T> d_o, y;
  if (norm_output_ == NormOutput::save) y = context.saved.template take<T>();
  Tensor<Accumulate<T>> norm_rstd = context.saved.template take<Accumulate<T>>();
  Tensor<T> o = context.saved.template take<T>();
  const Tensor<T> projections = context.saved.template take<T>();
  DELTAPORT_VALIDATE(projections.extent(0) == rows, ShapeError, prefix_, ": dy has ", rows,
                     " rows, forward had ", projections.extent(0));
  const Tensor<T> d_projections = runtime.allocate<T>("mixer d projections", projections.shape());
  {
    Tensor<T> d_gated = runtime.allocate<T>("mixer d gated", Shape{rows, shape_.values()});
    linear_backward_input<T>(runtime, rows, shape_.values(), hidden_, dy.data(), hidden_,
                             out_proj_.value().data(), 0, d_gated.data(), shape_.values());
    const GatedNormGradients<T> d = gated_norm_backward(runtime, o, z(projections), norm_.master(), norm_rstd,
                                                        d_gated, z(d_projections), norm_.gradient(), y);
    d_gated = {};
    y = {};
    linear_backward_weight<T>(runtime, rows, shape_.values(), hidden_, dy.data(), hidden_, d.y.data(),
                              shape_.values(), out_proj_.gradient().data());
    d_o = d.dx;
  }
  o = {};
  norm_rstd = {};
  {
    const CoreGradients d = core_backward(context, projections, d_o, sequences, d_projections);
    d_o = {};
    const auto rstd = context.saved.template take<Accumulate<T>>();
    qkv_conv_backward(runtime, shape_, qkv(projections), conv_.value(), sequences.positions, rstd, d.dq, d.dk,
                      d.dv, qkv(d_projections), conv_.gradient());
  }
  const Tensor<T> x = context.saved.template take<T>();
  linear_backward_weight<T>(runtime, rows, hidden_, width_, d_projections.data(), width_, x.data(), hidden_,
                            in_proj_.gradient().data());
  const Tensor<T> dx = runtime.allocate<T>("mixer dx", x.shape());
  linear_backward_input<T>(runtime, rows, hidden_, width_, d_projections.data(), width_,
                           in_proj_.value().data(), 0, dx.data(), hidden_);
  return dx;
}

template <class T>
LinearDecodeState<T> LinearMixer<T>::make_state(Runtime& runtime, std::int64_t count) const {
  DELTAPORT_VALIDATE(count >= 1, ShapeError, prefix_, ": decoding needs at least one sequence, got ", count);
  LinearDecodeState<T> state;
  state.conv = runtime.allocate_zero<T>("conv state", Shape{count, shape_.channels(), conv_kernel_ - 1});
  state.recurrent = runtime.allocate_zero<Accumulate<T>>(
      "recurrent state", Shape{count, shape_.value_heads, shape_.key_dim, shape_.value_dim});
  return state;
}

template <class T>
Tensor<T> LinearMixer<T>::step(Runtime& runtime, const Tensor<T>& x, const LinearDecodeState<T>& state) {
  validate("x", x);
  const Tensor<T> projections = project(runtime, x);
  const QkvConvResult<T> inputs = qkv_conv_step(runtime, shape_, qkv(projections), conv_.value(), state.conv);
  const Tensor<T> o = core_step(runtime, projections, inputs, state.recurrent)
                          .reshape(Shape{x.extent(0), shape_.value_heads, shape_.value_dim});
  return project_out(runtime, gated_norm_forward(runtime, o, z(projections), norm_.master(), eps_).y);
}

template <class T>
Tensor<T> LinearMixer<T>::prefill(Runtime& runtime, const Tensor<T>& x, const Continuation& run,
                                  const LinearDecodeState<T>& state) {
  validate("x", x);
  check_continuation(prefix_, run, x.extent(0), state.conv.extent(0));
  const std::int64_t first = run.first, last = run.first + run.count();
  SavedTensors nothing;
  Context context{runtime, nothing, Mode::evaluate};
  const Tensor<T> projections = project(runtime, x);
  Tensor<T> o;
  {
    const QkvConvResult<T> inputs = qkv_conv_prefill(runtime, shape_, qkv(projections), conv_.value(),
                                                     run.sequences, state.conv.rows(first, last));
    o = core_prefill(context, projections, inputs, run.sequences, state.recurrent.rows(first, last))
            .reshape(Shape{x.extent(0), shape_.value_heads, shape_.value_dim});
  }
  return project_out(runtime, gated_norm_forward(runtime, o, z(projections), norm_.master(), eps_).y);
}

template class LinearMixer<bfloat16>;
template class LinearMixer<float>;
template class LinearMixer<double>;

}  // namespace deltaport
