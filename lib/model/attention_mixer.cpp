// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/attention_mixer.hpp"

#include <cmath>
#include <limits>

#include "deltaport/core/gemm.hpp"
#include "model/attention_core.hpp"
#include "model/attention_project.hpp"
#include "model/attention_step.hpp"

namespace deltaport {

namespace {

void validate(const std::string& prefix, const ModelConfig& config, std::int64_t rotary_dim) {
  const AttentionConfig& a = config.attention;
  DELTAPORT_VALIDATE(config.hidden_size > 0 && a.num_heads > 0 && a.num_kv_heads > 0 && a.head_dim > 0,
                     ConfigError, prefix,
                     ": hidden_size, num_heads, num_kv_heads and head_dim must be positive");
  DELTAPORT_VALIDATE(a.num_heads % a.num_kv_heads == 0, ConfigError, prefix, ": num_heads = ", a.num_heads,
                     " must be a multiple of num_kv_heads = ", a.num_kv_heads);
  const double rotated = static_cast<double>(a.head_dim) * a.partial_rotary_factor;
  DELTAPORT_VALIDATE(std::abs(rotated - static_cast<double>(rotary_dim)) < 1e-6 && rotary_dim >= 0 &&
                         rotary_dim % 2 == 0 && rotary_dim <= a.head_dim,
                     ConfigError, prefix, ": head_dim * partial_rotary_factor = ", rotated,
                     " must be an even whole number of at most head_dim = ", a.head_dim);
  DELTAPORT_VALIDATE(a.rope_theta > 0, ConfigError, prefix, ": rope_theta must be positive, got ",
                     a.rope_theta);
}

}  // namespace

/// Everything the core reads, and what backward needs to undo it.
template <class T>
struct AttentionMixer<T>::Projected {
  Tensor<T> projections;        // [T, width]
  Tensor<Accumulate<T>> table;  // [T, rotary_dim]
  Tensor<T> q, k;               // after norm and rotation
};

template <class T>
AttentionMixer<T>::AttentionMixer(ParameterSet<T>& parameters, const std::string& prefix,
                                  const ModelConfig& config, AttentionImplementation implementation)
    : hidden_(config.hidden_size),
      heads_(config.attention.num_heads),
      kv_heads_(config.attention.num_kv_heads),
      head_dim_(config.attention.head_dim),
      rotary_dim_(std::llround(static_cast<double>(head_dim_) * config.attention.partial_rotary_factor)),
      rope_theta_(config.attention.rope_theta),
      eps_(config.rms_norm_eps),
      prefix_(prefix),
      core_(std::make_shared<AttentionCore<T>>(implementation)) {
  validate(prefix, config, rotary_dim_);
  const Initializer init{Initializer::Kind::normal, config.initializer_range, 0.0};
  const std::int64_t key_rows = kv_heads_ * head_dim_;
  qkv_ = {&parameters,
          parameters.declare_fused(
              {{prefix + ".q_proj.weight", Shape{2 * heads_ * head_dim_, hidden_}, 0, true, init},
               {prefix + ".k_proj.weight", Shape{key_rows, hidden_}, 0, true, init},
               {prefix + ".v_proj.weight", Shape{key_rows, hidden_}, 0, true, init}})};
  out_ = {&parameters,
          parameters.declare(prefix + ".o_proj.weight", Shape{hidden_, heads_ * head_dim_}, true, init)};
  q_norm_ = {&parameters, parameters.declare(prefix + ".q_norm.weight", Shape{head_dim_}, false, {})};
  k_norm_ = {&parameters, parameters.declare(prefix + ".k_norm.weight", Shape{head_dim_}, false, {})};
}

template <class T>
typename AttentionMixer<T>::Projected AttentionMixer<T>::project(Runtime& runtime, const Tensor<T>& x,
                                                                 const std::int32_t* positions) const {
  DELTAPORT_VALIDATE(x.rank() == 2 && x.extent(1) == hidden_, ShapeError, prefix_, ": x must be [T, ",
                     hidden_, "], got ", x.shape().str());
  const std::int64_t tokens = x.extent(0), width = projected_width();
  Projected p;
  p.projections = runtime.allocate<T>("attention projections", Shape{tokens, width});
  p.table = runtime.allocate<Accumulate<T>>("attention rotation", Shape{tokens, rotary_dim_});
  p.q = runtime.allocate<T>("attention q", Shape{tokens, heads_, head_dim_});
  p.k = runtime.allocate<T>("attention k", Shape{tokens, kv_heads_, head_dim_});
  linear_forward<T>(runtime, tokens, hidden_, width, x.data(), hidden_, qkv_.value().data(),
                    p.projections.data(), width);
  rotation_table<T>(runtime, tokens, rotary_dim_, rope_theta_, positions, 0, p.table.data());
  norm_and_rotate<T>(runtime, tokens, {heads_, kv_heads_, head_dim_, rotary_dim_},
                     {q_norm_.value().data(), k_norm_.value().data(), eps_}, p.projections.data(),
                     p.table.data(), p.q.data(), p.k.data());
  return p;
}

template <class T>
Tensor<T> AttentionMixer<T>::gate_and_project(Runtime& runtime, const Tensor<T>& projections,
                                              const Tensor<T>& attended) const {
  const std::int64_t tokens = attended.extent(0), inner = heads_ * head_dim_;
  const auto gated = runtime.allocate<T>("attention gated", attended.shape());
  const auto y = runtime.allocate<T>("attention output", Shape{tokens, hidden_});
  apply_gate<T>(runtime, tokens, {heads_, kv_heads_, head_dim_, rotary_dim_}, projections.data(),
                attended.data(), gated.data());
  linear_forward<T>(runtime, tokens, inner, hidden_, gated.data(), inner, out_.value().data(), y.data(),
                    hidden_);
  return y;
}

namespace {

AttentionShape core_shape(std::int64_t tokens, const AttentionLayout& layout) {
  return {tokens,          layout.heads,   layout.kv_heads,
          layout.head_dim, layout.width(), 1.0 / std::sqrt(static_cast<double>(layout.head_dim))};
}

}  // namespace

template <class T>
Tensor<T> AttentionMixer<T>::forward(Context& context, const Tensor<T>& x, const Sequences& sequences) const {
  Runtime& runtime = context.runtime;
  WorkScope scope(runtime, Work::attention, "deltaport: attention forward");
  DELTAPORT_VALIDATE(sequences.positions.size() == x.extent(0), ShapeError, prefix_, ": sequences cover ",
                     sequences.positions.size(), " tokens but x is ", x.shape().str());
  const std::int64_t tokens = x.extent(0);
  const AttentionLayout layout{heads_, kv_heads_, head_dim_, rotary_dim_};
  const Projected p = project(runtime, x, sequences.positions.data());
  const auto o = runtime.allocate<T>("attention core output", Shape{tokens, heads_, head_dim_});
  const auto logsumexp = runtime.allocate<Accumulate<T>>("attention logsumexp", Shape{heads_, tokens});
  core_->forward(runtime, core_shape(tokens, layout), sequences, p.q.data(), p.k.data(),
                 p.projections.data() + layout.value_offset(0), o.data(), logsumexp.data());
  if (context.training()) {
    context.saved.save(x);
    context.saved.save(p.projections);
    context.saved.save(p.table);
    context.saved.open("attn_core");
    context.saved.save(p.q);
    context.saved.save(p.k);
    context.saved.save(o);
    context.saved.save(logsumexp);
    context.saved.commit();
  }
  return gate_and_project(runtime, p.projections, o);
}

template <class T>
Tensor<T> AttentionMixer<T>::backward(Context& context, const Tensor<T>& dy,
                                      const Sequences& sequences) const {
  Runtime& runtime = context.runtime;
  WorkScope scope(runtime, Work::attention, "deltaport: attention backward");
  using A = Accumulate<T>;
  const auto logsumexp = context.saved.template take<A>();
  const auto o = context.saved.template take<T>();
  const auto k = context.saved.template take<T>(), q = context.saved.template take<T>();
  const auto table = context.saved.template take<A>();
  const auto projections = context.saved.template take<T>();
  const auto x = context.saved.template take<T>();
  DELTAPORT_VALIDATE(dy.shape() == x.shape(), ShapeError, prefix_, ": dy is ", dy.shape().str(),
                     " but x was ", x.shape().str());
  const std::int64_t tokens = x.extent(0), inner = heads_ * head_dim_, width = projected_width();
  const AttentionLayout layout{heads_, kv_heads_, head_dim_, rotary_dim_};
  const auto d_projections = runtime.allocate<T>("attention d_projections", projections.shape());
  const auto d_o = runtime.allocate<T>("attention do", o.shape());
  const auto delta = runtime.allocate<A>("attention delta", logsumexp.shape());
  {
    const auto gated = runtime.allocate<T>("attention gated", o.shape());
    linear_backward_input<T>(runtime, tokens, inner, hidden_, dy.data(), hidden_, out_.value().data(), 0,
                             d_o.data(), inner);
    apply_gate_backward<T>(runtime, tokens, layout, projections.data(), o.data(), d_o.data(), gated.data(),
                           d_projections.data(), delta.data());
    linear_backward_weight<T>(runtime, tokens, inner, hidden_, dy.data(), hidden_, gated.data(), inner,
                              out_.gradient().data());
  }
  const std::int64_t value_offset = layout.value_offset(0);
  const auto d = core_->backward(runtime, core_shape(tokens, layout), sequences, q.data(), k.data(),
                                 projections.data() + value_offset, o.data(), logsumexp.data(), delta.data(),
                                 d_o.data(), d_projections.data() + value_offset);
  const auto pass_on = [&](const auto& dq, const auto& dk) {
    norm_and_rotate_backward<T>(runtime, tokens, layout,
                                {q_norm_.value().data(), k_norm_.value().data(), eps_}, projections.data(),
                                table.data(), dq.data(), dk.data(), d_projections.data(),
                                q_norm_.gradient().data(), k_norm_.gradient().data());
  };
  if (d.rounded_q.defined())
    pass_on(d.rounded_q, d.rounded_k);
  else
    pass_on(d.q, d.k);
  const auto dx = runtime.allocate<T>("attention dx", x.shape());
  linear_backward_input<T>(runtime, tokens, hidden_, width, d_projections.data(), width, qkv_.value().data(),
                           0, dx.data(), hidden_);
  linear_backward_weight<T>(runtime, tokens, hidden_, width, d_projections.data(), width, x.data(), hidden_,
                            qkv_.gradient().data());
  return dx;
}

namespace {

struct AddOne {
  std::int32_t* lengths;
  KOKKOS_FUNCTION void operator()(std::int64_t n) const { ++lengths[n]; }
};

struct AddLengths {
  const std::int32_t* cu_seqlens;
  std::int32_t* lengths;
  KOKKOS_FUNCTION void operator()(std::int64_t m) const { lengths[m] += cu_seqlens[m + 1] - cu_seqlens[m]; }
};

struct DocumentPosition {
  const std::int32_t* positions;
  const std::int32_t* sequence_of;
  const std::int32_t* lengths;
  std::int32_t* result;
  KOKKOS_FUNCTION void operator()(std::int64_t t) const {
    result[t] = positions[t] + lengths[sequence_of[t]];
  }
};

template <class T>
void require_room(const std::string& prefix, const AttentionState<T>& state, std::int64_t n,
                  std::int64_t tokens) {
  const std::int64_t seen = state.seen[static_cast<std::size_t>(n)];
  DELTAPORT_VALIDATE(seen + tokens <= state.capacity(), ShapeError, prefix,
                     ": the attention state of sequence ", n, " has seen ", seen, " of ", state.capacity(),
                     " tokens, ", tokens, " more do not fit; make it larger");
}

}  // namespace

template <class T>
AttentionState<T> AttentionMixer<T>::make_state(Runtime& runtime, std::int64_t sequences,
                                                std::int64_t capacity) const {
  DELTAPORT_VALIDATE(capacity <= std::numeric_limits<std::int32_t>::max(), ShapeError, prefix_,
                     ": a capacity of ", capacity, " tokens does not fit 32 bits");
  AttentionState<T> state;
  const Shape shape{sequences, capacity, kv_heads_, head_dim_};
  state.keys = runtime.allocate_zero<T>("attention state keys", shape);
  state.values = runtime.allocate_zero<T>("attention state values", shape);
  state.lengths = runtime.allocate_zero<std::int32_t>("attention state lengths", Shape{sequences});
  state.seen.assign(static_cast<std::size_t>(sequences), 0);
  return state;
}

template <class T>
Tensor<T> AttentionMixer<T>::step(Runtime& runtime, const Tensor<T>& x, AttentionState<T>& state) const {
  WorkScope scope(runtime, Work::attention, "deltaport: attention step");
  DELTAPORT_VALIDATE(state.keys.rank() == 4 && state.sequences() == x.extent(0), ShapeError, prefix_,
                     ": the state's keys are ", state.keys.shape().str(), " but x is ", x.shape().str());
  const std::int64_t count = x.extent(0);
  for (std::int64_t n = 0; n < count; ++n) require_room(prefix_, state, n, 1);
  const AttentionLayout layout{heads_, kv_heads_, head_dim_, rotary_dim_};
  const Projected p = project(runtime, x, state.lengths.data());
  const auto o = runtime.allocate<T>("attention core output", Shape{count, heads_, head_dim_});
  append_to_state<T>(runtime, layout, state, count, nullptr, state.lengths.data(), p.projections.data(),
                     p.k.data());
  attend_to_state<T>(runtime, layout, state, p.q.data(), o.data());
  for_each_index(runtime.compute(), "deltaport: attention lengths", count, AddOne{state.lengths.data()});
  for (std::int64_t& seen : state.seen) ++seen;
  return gate_and_project(runtime, p.projections, o);
}

template <class T>
Tensor<T> AttentionMixer<T>::prefill(Runtime& runtime, const Tensor<T>& x, const Continuation& run,
                                     AttentionState<T>& state) const {
  WorkScope scope(runtime, Work::attention, "deltaport: attention prefill");
  const std::int64_t tokens = x.extent(0), count = run.count();
  check_continuation(prefix_, run, tokens, state.sequences());
  for (std::int64_t m = 0; m < count; ++m) require_room(prefix_, state, run.first + m, run.length(m));
  const AttentionLayout layout{heads_, kv_heads_, head_dim_, rotary_dim_};
  AttentionState<T> part;  // the run's sequences
  part.keys = state.keys.rows(run.first, run.first + count);
  part.values = state.values.rows(run.first, run.first + count);
  part.lengths = state.lengths.rows(run.first, run.first + count);
  const std::int32_t* sequence_of = run.sequences.sequence_of.data();
  const auto positions = runtime.allocate<std::int32_t>("attention positions", Shape{tokens});
  for_each_index(
      runtime.compute(), "deltaport: attention positions", tokens,
      DocumentPosition{run.sequences.positions.data(), sequence_of, part.lengths.data(), positions.data()});
  const Projected p = project(runtime, x, positions.data());
  append_to_state<T>(runtime, layout, part, tokens, sequence_of, positions.data(), p.projections.data(),
                     p.k.data());
  const auto o = runtime.allocate<T>("attention core output", Shape{tokens, heads_, head_dim_});
  AttentionShape shape = core_shape(tokens, layout);
  shape.value_stride = kv_heads_ * head_dim_;
  attention_cached<T>(runtime, shape, run.sequences, part.lengths.data(), state.capacity(), p.q.data(),
                      part.keys.data(), part.values.data(), o.data());
  for_each_index(runtime.compute(), "deltaport: attention lengths", count,
                 AddLengths{run.sequences.cu_seqlens.data(), part.lengths.data()});
  for (std::int64_t m = 0; m < count; ++m)
    state.seen[static_cast<std::size_t>(run.first + m)] += run.length(m);
  return gate_and_project(runtime, p.projections, o);
}

template class AttentionMixer<bfloat16>;
template class AttentionMixer<float>;
template class AttentionMixer<double>;

}  // namespace deltaport
