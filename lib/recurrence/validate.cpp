// SPDX-License-Identifier: Apache-2.0
#include "recurrence/validate.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace deltaport::recurrence {
namespace {

std::string_view name_of(GateActivation gate) {
  switch (gate) {
    case GateActivation::softplus:
      return "softplus";
    case GateActivation::lower_bounded:
      return "lower_bounded";
    default:
      return "log_decay";
  }
}
std::string_view name_of(BetaActivation beta) {
  switch (beta) {
    case BetaActivation::sigmoid:
      return "sigmoid";
    case BetaActivation::doubled_sigmoid:
      return "doubled_sigmoid";
    default:
      return "plain";
  }
}

template <class X>
void check_shape(const char* operation, const char* name, const Tensor<X>& x, const Shape& expected,
                 const char* letters) {
  DELTAPORT_VALIDATE(x.defined(), ShapeError, operation, ": ", name, " is missing; expected ", letters, " = ",
                     expected.str());
  DELTAPORT_VALIDATE(x.shape() == expected, ShapeError, operation, ": ", name, " has shape ", x.shape().str(),
                     ", expected ", letters, " = ", expected.str());
}

template <class X>
void check_rank(const char* operation, const char* name, const Tensor<X>& x, int rank, const char* letters) {
  DELTAPORT_VALIDATE(x.defined(), ShapeError, operation, ": ", name, " is missing; expected ", letters);
  DELTAPORT_VALIDATE(x.rank() == rank, ShapeError, operation, ": ", name, " has shape ", x.shape().str(),
                     ", expected ", letters);
  for (int i = 0; i < rank; ++i)
    DELTAPORT_VALIDATE(x.extent(i) >= 1 && x.extent(i) <= std::numeric_limits<std::int32_t>::max(),
                       ShapeError, operation, ": ", name, " has shape ", x.shape().str(),
                       "; every extent must be in [1, 2^31)");
}

// Boundaries live in the execution space. On hosts they are read here; on devices reading them would stall
// the stream, so kernels clamp them instead (Extents::span). Work that is captured meets others at each replay.
void check_boundaries(const char* operation, const Tensor<std::int32_t>& cu_seqlens, std::int64_t tokens) {
  if constexpr (runs_on_host) {
    if (!host_may_read_inputs()) return;
    const std::int32_t* cu = cu_seqlens.data();
    const std::int64_t n = cu_seqlens.extent(0) - 1;
    DELTAPORT_VALIDATE(cu[0] == 0, ShapeError, operation, ": cu_seqlens starts at ", cu[0], ", expected 0");
    for (std::int64_t i = 0; i < n; ++i)
      DELTAPORT_VALIDATE(cu[i] <= cu[i + 1], ShapeError, operation, ": cu_seqlens falls from ", cu[i], " to ",
                         cu[i + 1], " at index ", i + 1, "; it must ascend");
    DELTAPORT_VALIDATE(cu[n] <= tokens, ShapeError, operation, ": cu_seqlens ends at ", cu[n],
                       ", beyond T = ", tokens);
  }
}

template <class Inputs>
void check_sequences(const char* operation, const Inputs& inputs, Extents& x) {
  x.sequences = x.batch;
  if (inputs.cu_seqlens.defined()) {
    const auto& cu = inputs.cu_seqlens;
    DELTAPORT_VALIDATE(cu.rank() == 1 && cu.extent(0) >= 2, ShapeError, operation, ": cu_seqlens has shape ",
                       cu.shape().str(), ", expected [N + 1] with N >= 1");
    DELTAPORT_VALIDATE(x.batch == 1, ShapeError, operation,
                       ": cu_seqlens needs B = 1, but q has B = ", x.batch,
                       "; flatten the batch into one run of tokens");
    check_boundaries(operation, cu, x.tokens);
    x.sequences = cu.extent(0) - 1;
    x.cu_seqlens = cu.data();
  }
  DELTAPORT_VALIDATE(x.sequences * x.value_heads <= std::numeric_limits<std::int32_t>::max(), ShapeError,
                     operation, ": N * HV = ", x.sequences * x.value_heads, " does not fit 32 bits");
  if (inputs.initial_state.defined())
    check_shape(operation, "initial_state", inputs.initial_state,
                {x.sequences, x.value_heads, x.key_dim, x.value_dim}, "[N, HV, K, V]");
}

template <class Inputs>
Extents check_qkv(const char* operation, const Inputs& inputs) {
  check_rank(operation, "q", inputs.q, 4, "[B, T, H, K]");
  check_rank(operation, "v", inputs.v, 4, "[B, T, HV, V]");
  check_shape(operation, "k", inputs.k, inputs.q.shape(), "[B, T, H, K] of q");
  Extents x;
  x.batch = inputs.q.extent(0);
  x.tokens = inputs.q.extent(1);
  x.key_heads = static_cast<int>(inputs.q.extent(2));
  x.key_dim = static_cast<int>(inputs.q.extent(3));
  x.value_heads = static_cast<int>(inputs.v.extent(2));
  x.value_dim = static_cast<int>(inputs.v.extent(3));
  x.gate_heads = x.value_heads;
  check_shape(operation, "v", inputs.v, {x.batch, x.tokens, x.value_heads, x.value_dim}, "[B, T, HV, V]");
  DELTAPORT_VALIDATE(x.value_heads % x.key_heads == 0, ShapeError, operation, ": v has HV = ", x.value_heads,
                     " heads, not a multiple of the H = ", x.key_heads, " heads of q and k");
  return x;
}

// Exactly one of a tensor and its pre-activation is given, the one that the option wants.
template <class X, class Y>
void check_either(const char* operation, const char* name, const Tensor<X>& plain, const char* raw_name,
                  const Tensor<Y>& raw, const char* option, std::string_view value, bool activated) {
  if (activated)
    DELTAPORT_VALIDATE(!plain.defined(), ShapeError, operation, ": ", name, " must be empty with ", option,
                       " ", value, ", which takes ", raw_name);
  else
    DELTAPORT_VALIDATE(!raw.defined(), ShapeError, operation, ": ", raw_name, " must be empty with ", option,
                       " ", value, ", which takes ", name);
}

// g or raw_gate, A_log and dt_bias. `letters` are those of the gate, `per_head` those of dt_bias.
template <class Inputs>
void check_gate(const char* operation, const Inputs& in, const Options& options, const Shape& gate,
                const char* letters, const Shape& per_head, const char* bias_letters) {
  const bool activated = options.gate != GateActivation::log_decay;
  if (activated)
    check_shape(operation, "raw_gate", in.raw_gate, gate, letters);
  else
    check_shape(operation, "g", in.g, gate, letters);
  DELTAPORT_VALIDATE(activated || !in.A_log.defined(), ShapeError, operation,
                     ": A_log must be empty with gate log_decay, which has no activation");
  DELTAPORT_VALIDATE(activated || !in.dt_bias.defined(), ShapeError, operation,
                     ": dt_bias must be empty with gate log_decay, which has no activation");
  if (in.A_log.defined() || options.gate == GateActivation::softplus)
    check_shape(operation, "A_log", in.A_log, {per_head[0]}, "[heads of raw_gate]");
  if (in.dt_bias.defined()) check_shape(operation, "dt_bias", in.dt_bias, per_head, bias_letters);
}

}  // namespace

template <class T>
Extents check_inputs(const char* operation, const GdnInputs<T>& inputs, const Options& options) {
  Extents x = check_qkv(operation, inputs);
  check_either(operation, "g", inputs.g, "raw_gate", inputs.raw_gate, "gate", name_of(options.gate),
               options.gate != GateActivation::log_decay);
  check_either(operation, "beta", inputs.beta, "raw_beta", inputs.raw_beta, "beta", name_of(options.beta),
               options.beta != BetaActivation::plain);
  const Shape scalars{x.batch, x.tokens, x.value_heads};
  check_gate(operation, inputs, options, scalars, "[B, T, HV]", {x.value_heads}, "[HV]");
  if (options.beta == BetaActivation::plain)
    check_shape(operation, "beta", inputs.beta, scalars, "[B, T, HV]");
  else
    check_shape(operation, "raw_beta", inputs.raw_beta, scalars, "[B, T, HV]");
  DELTAPORT_VALIDATE(options.write_gate == WriteGate::plain, ShapeError, operation,
                     ": write_gate is sigmoid, but GDN has no write gate; leave it plain");
  check_sequences(operation, inputs, x);
  return x;
}

template <class T>
Extents check_inputs(const char* operation, const Gdn2Inputs<T>& inputs, const Options& options) {
  Extents x = check_qkv(operation, inputs);
  const bool activated = options.gate != GateActivation::log_decay;
  check_either(operation, "g", inputs.g, "raw_gate", inputs.raw_gate, "gate", name_of(options.gate),
               activated);
  if (activated)
    check_rank(operation, "raw_gate", inputs.raw_gate, 4, "[B, T, HV or H, K]");
  else
    check_rank(operation, "g", inputs.g, 4, "[B, T, HV or H, K]");
  if ((activated ? inputs.raw_gate.extent(2) : inputs.g.extent(2)) == x.key_heads) x.gate_heads = x.key_heads;
  const Shape gate{x.batch, x.tokens, x.gate_heads, x.key_dim};
  check_gate(operation, inputs, options, gate, "[B, T, HV or H, K]", {x.gate_heads, x.key_dim},
             "[heads of raw_gate, K]");
  check_shape(operation, "b", inputs.b, gate, "[B, T, HV or H, K] of the gate");
  check_shape(operation, "w", inputs.w, inputs.v.shape(), "[B, T, HV, V]");
  check_sequences(operation, inputs, x);
  return x;
}

void check_options(const char* operation, const Options& options) {
  const int c = options.chunk_size;
  DELTAPORT_VALIDATE(c == 16 || c == 32 || c == 64, ShapeError, operation, ": chunk_size is ", c,
                     ", expected 16, 32 or 64");
  DELTAPORT_VALIDATE(std::isfinite(options.scale), ShapeError, operation, ": scale is ", options.scale,
                     ", expected a finite number (0 for K^-0.5)");
  const double bound = options.gate_lower_bound;
  DELTAPORT_VALIDATE(options.gate != GateActivation::lower_bounded || (bound >= -5.0 && bound < 0.0),
                     ShapeError, operation, ": gate_lower_bound is ", bound,
                     ", expected a number in [-5, 0)");
}

template <class Inputs, class A>
Extents check_step(const char* operation, const Inputs& inputs, const Tensor<A>& state,
                   const Options& options, const Tensor<std::int32_t>& state_indices) {
  DELTAPORT_VALIDATE(!inputs.initial_state.defined(), ShapeError, operation,
                     ": initial_state must be empty; the step updates `state` in place");
  DELTAPORT_VALIDATE(!inputs.cu_seqlens.defined(), ShapeError, operation,
                     ": cu_seqlens must be empty; each batch entry "
                     "is one sequence");
  const Extents x = check_inputs(operation, inputs, options);
  DELTAPORT_VALIDATE(x.tokens == 1, ShapeError, operation, ": q has T = ", x.tokens, ", expected 1");
  if (!state_indices.defined()) {
    check_shape(operation, "state", state, {x.batch, x.value_heads, x.key_dim, x.value_dim}, "[N, HV, K, V]");
    return x;
  }
  check_shape(operation, "state_indices", state_indices, {x.batch}, "[N]");
  check_rank(operation, "state", state, 4, "[slots, HV, K, V]");
  const std::int64_t slots = state.extent(0);
  check_shape(operation, "state", state, {slots, x.value_heads, x.key_dim, x.value_dim}, "[slots, HV, K, V]");
  if constexpr (runs_on_host)
    for (std::int64_t n = 0; n < x.batch; ++n)
      DELTAPORT_VALIDATE(state_indices.data()[n] < slots, ShapeError, operation, ": state_indices[", n,
                         "] is ", state_indices.data()[n], ", but state has ", slots, " slots");
  return x;
}

template <class T>
void check_gradients(const char* operation, const Extents& x, const Tensor<T>& d_o,
                     const Tensor<Accumulate<T>>& d_final_state) {
  check_shape(operation, "d_o", d_o, {x.batch, x.tokens, x.value_heads, x.value_dim}, "[B, T, HV, V]");
  if (d_final_state.defined())
    check_shape(operation, "d_final_state", d_final_state,
                {x.sequences, x.value_heads, x.key_dim, x.value_dim}, "[N, HV, K, V]");
}

#define DELTAPORT_INSTANTIATE(T)                                                                          \
  template Extents check_inputs<T>(const char*, const GdnInputs<T>&, const Options&);                     \
  template Extents check_inputs<T>(const char*, const Gdn2Inputs<T>&, const Options&);                    \
  template Extents check_step<GdnInputs<T>, Accumulate<T>>(const char*, const GdnInputs<T>&,              \
                                                           const Tensor<Accumulate<T>>&, const Options&,  \
                                                           const Tensor<std::int32_t>&);                  \
  template Extents check_step<Gdn2Inputs<T>, Accumulate<T>>(const char*, const Gdn2Inputs<T>&,            \
                                                            const Tensor<Accumulate<T>>&, const Options&, \
                                                            const Tensor<std::int32_t>&);                 \
  template void check_gradients<T>(const char*, const Extents&, const Tensor<T>&,                         \
                                   const Tensor<Accumulate<T>>&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence
