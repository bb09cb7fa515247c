// SPDX-License-Identifier: Apache-2.0
#include "conformance/harness.hpp"

#include <algorithm>

namespace deltaport::conformance {
namespace {

using recurrence::Gdn2Inputs;
using recurrence::GdnInputs;

template <class X>
Tensor<X> upload(Runtime& runtime, const Shape& shape, const std::vector<double>& values) {
  if (values.empty()) return {};
  std::vector<X> narrow;
  for (double value : values) narrow.push_back(static_cast<X>(static_cast<Accumulate<X>>(value)));
  return from_vector<X>(runtime.compute(), runtime.arena(), "test input", shape, narrow);
}

template <class X>
void store(Runtime& runtime, Values& out, const char* name, const Tensor<X>& x) {
  if (!x.defined()) return;
  auto& values = out[name];
  values.clear();
  for (X value : to_vector(runtime.compute(), x)) values.push_back(static_cast<Accumulate<X>>(value));
}

template <class T, class Inputs>
void upload_shared(Runtime& runtime, const Problem<double>& p, Inputs& x) {
  x.q = upload<T>(runtime, {p.batch, p.tokens, p.key_heads, p.key_dim}, p.q);
  x.k = upload<T>(runtime, {p.batch, p.tokens, p.key_heads, p.key_dim}, p.k);
  x.v = upload<T>(runtime, {p.batch, p.tokens, p.value_heads, p.value_dim}, p.v);
  x.initial_state =
      upload<Accumulate<T>>(runtime, {p.sequences(), p.value_heads, p.key_dim, p.value_dim}, p.initial_state);
  if (!p.cu_seqlens.empty())
    x.cu_seqlens = from_vector<std::int32_t>(runtime.compute(), runtime.arena(), "cu_seqlens",
                                             {static_cast<std::int64_t>(p.cu_seqlens.size())}, p.cu_seqlens);
}

/// g or raw_gate and its parameters; `shape` is that of g, `bias` that of dt_bias.
template <class T, class Inputs>
void upload_gate(Runtime& runtime, const Problem<double>& p, const Shape& shape, const Shape& bias,
                 Inputs& x) {
  using A = Accumulate<T>;
  if (p.activations.gate == Gate::log_decay) {
    x.g = upload<A>(runtime, shape, p.g);
    return;
  }
  x.raw_gate = upload<T>(runtime, shape, p.g);
  x.A_log = upload<A>(runtime, {bias[0]}, p.A_log);
  x.dt_bias = upload<A>(runtime, bias, p.dt_bias);
}

template <class T>
struct IncomingGradients {
  Tensor<T> d_o;
  Tensor<Accumulate<T>> d_final_state;
  IncomingGradients(Runtime& runtime, const Problem<double>& p)
      : d_o(upload<T>(runtime, {p.batch, p.tokens, p.value_heads, p.value_dim}, p.d_o)),
        d_final_state(upload<Accumulate<T>>(runtime, {p.sequences(), p.value_heads, p.key_dim, p.value_dim},
                                            p.d_final_state)) {}
};

template <class Gradients>
void store_shared(Runtime& runtime, Values& out, const Gradients& gradients) {
  store(runtime, out, "dq", gradients.dq);
  store(runtime, out, "dk", gradients.dk);
  store(runtime, out, "dv", gradients.dv);
  store(runtime, out, "dg", gradients.dg);
  store(runtime, out, "dinitial_state", gradients.dinitial_state);
  store(runtime, out, "d_raw_gate", gradients.d_raw_gate);
  store(runtime, out, "dA_log", gradients.dA_log);
  store(runtime, out, "ddt_bias", gradients.ddt_bias);
}

}  // namespace

recurrence::Options options_of(const Problem<double>& p) {
  const Activations& a = p.activations;
  recurrence::Options options;
  options.scale = p.scale;
  options.qk_norm = a.l2_norm ? recurrence::QkNorm::l2 : recurrence::QkNorm::none;
  options.gate = static_cast<recurrence::GateActivation>(a.gate);
  options.gate_lower_bound = a.lower_bound;
  options.beta = static_cast<recurrence::BetaActivation>(a.beta);
  options.write_gate = a.write_sigmoid ? recurrence::WriteGate::sigmoid : recurrence::WriteGate::plain;
  return options;
}

template <class T>
GdnInputs<T> gdn_inputs(Runtime& runtime, const Problem<double>& p) {
  GdnInputs<T> x;
  upload_shared<T>(runtime, p, x);
  const Shape scalars{p.batch, p.tokens, p.value_heads};
  upload_gate<T>(runtime, p, scalars, {p.value_heads}, x);
  if (p.activations.beta == Beta::plain)
    x.beta = upload<Accumulate<T>>(runtime, scalars, p.beta);
  else
    x.raw_beta = upload<T>(runtime, scalars, p.beta);
  return x;
}

template <class T>
Gdn2Inputs<T> gdn2_inputs(Runtime& runtime, const Problem<double>& p) {
  Gdn2Inputs<T> x;
  upload_shared<T>(runtime, p, x);
  upload_gate<T>(runtime, p, {p.batch, p.tokens, p.gate_heads, p.key_dim}, {p.gate_heads, p.key_dim}, x);
  x.b = upload<T>(runtime, {p.batch, p.tokens, p.gate_heads, p.key_dim}, p.b);
  x.w = upload<T>(runtime, {p.batch, p.tokens, p.value_heads, p.value_dim}, p.w);
  return x;
}

template <class T>
Values run(Runtime& runtime, const Problem<double>& p, const recurrence::Options& options, Pass pass) {
  recurrence::Options resolved = options_of(p);
  resolved.implementation = options.implementation;
  resolved.chunk_size = options.chunk_size;
  resolved.keep = options.keep;
  resolved.output_final_state = true;
  resolved.save_for_backward = pass == Pass::forward_and_backward;
  Values out;
  const auto finish = [&](const auto& result, auto backward, auto store_gates) {
    store(runtime, out, "o", result.o);
    store(runtime, out, "final_state", result.final_state);
    if (pass == Pass::forward) return;
    const IncomingGradients<T> incoming(runtime, p);
    const auto gradients = backward(result.saved, incoming);
    store_shared(runtime, out, gradients);
    store_gates(gradients);
  };
  if (p.rule == Rule::gdn)
    finish(
        recurrence::gdn_forward<T>(runtime, gdn_inputs<T>(runtime, p), resolved),
        [&](const auto& saved, const auto& in) {
          return recurrence::gdn_backward<T>(runtime, saved, in.d_o, in.d_final_state);
        },
        [&](const auto& gradients) {
          store(runtime, out, "dbeta", gradients.dbeta);
          store(runtime, out, "d_raw_beta", gradients.d_raw_beta);
        });
  else
    finish(
        recurrence::gdn2_forward<T>(runtime, gdn2_inputs<T>(runtime, p), resolved),
        [&](const auto& saved, const auto& in) {
          return recurrence::gdn2_backward<T>(runtime, saved, in.d_o, in.d_final_state);
        },
        [&](const auto& gradients) {
          store(runtime, out, "db", gradients.db);
          store(runtime, out, "dw", gradients.dw);
        });
  return out;
}

namespace {

/// The states of run_steps: those of the problem, or scattered over slots.
template <class A>
Tensor<A> step_states(Runtime& runtime, const Problem<double>& p, const std::vector<std::int32_t>& slots) {
  if (slots.empty())
    return upload<A>(runtime, {p.batch, p.value_heads, p.key_dim, p.value_dim}, p.initial_state);
  const std::int64_t size = std::int64_t{p.value_heads} * p.key_dim * p.value_dim;
  const std::int64_t count = *std::max_element(slots.begin(), slots.end()) + 2;
  std::vector<double> values(static_cast<std::size_t>(count * size), 7.0);
  for (std::size_t n = 0; n < slots.size(); ++n)
    if (slots[n] >= 0)
      std::copy_n(p.initial_state.begin() + static_cast<std::int64_t>(n) * size, size,
                  values.begin() + slots[n] * size);
  return upload<A>(runtime, {count, p.value_heads, p.key_dim, p.value_dim}, values);
}

}  // namespace

template <class T>
Values run_steps(Runtime& runtime, const Problem<double>& p, const std::vector<std::int32_t>& slots) {
  using A = Accumulate<T>;
  const Tensor<A> state = step_states<A>(runtime, p, slots);
  Tensor<std::int32_t> indices;
  if (!slots.empty())
    indices = from_vector<std::int32_t>(runtime.compute(), runtime.arena(), "slots", {p.batch}, slots);
  const recurrence::Options options = options_of(p);
  Values out;
  out["o"].resize(p.v.size());
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const Problem<double> one = only_token(p, t);
    const Tensor<T> o =
        p.rule == Rule::gdn
            ? recurrence::gdn_step<T>(runtime, gdn_inputs<T>(runtime, one), state, options, indices)
            : recurrence::gdn2_step<T>(runtime, gdn2_inputs<T>(runtime, one), state, options, indices);
    Values rows;
    store(runtime, rows, "o", o);
    const std::int64_t width = std::int64_t{p.value_heads} * p.value_dim;
    for (std::int64_t n = 0; n < p.batch; ++n)
      std::copy_n(rows["o"].begin() + n * width, width, out["o"].begin() + (n * p.tokens + t) * width);
  }
  store(runtime, out, "final_state", state);
  return out;
}

#define DELTAPORT_INSTANTIATE(T)                                                                    \
  template Values run<T>(Runtime&, const Problem<double>&, const recurrence::Options&, Pass);       \
  template Values run_steps<T>(Runtime&, const Problem<double>&, const std::vector<std::int32_t>&); \
  template recurrence::GdnInputs<T> gdn_inputs<T>(Runtime&, const Problem<double>&);                \
  template recurrence::Gdn2Inputs<T> gdn2_inputs<T>(Runtime&, const Problem<double>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::conformance
