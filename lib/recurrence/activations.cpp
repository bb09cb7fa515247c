// SPDX-License-Identifier: Apache-2.0
#include "recurrence/activations.hpp"

#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "recurrence/gates.hpp"
#include "recurrence/qk_norm.hpp"

namespace deltaport::recurrence {
namespace {

template <class X, class To>
struct Convert {
  const X* x;
  To* out;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    out[i] = static_cast<To>(static_cast<Accumulate<X>>(x[i]));
  }
};

/// out = factor sigmoid(raw)
template <class T>
struct ScaledSigmoid {
  using A = Accumulate<T>;
  const T* raw;
  A factor;
  A* out;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    out[i] = factor * sigmoid(static_cast<A>(raw[i]));
  }
};

/// One token.
template <class T>
struct ScaledSigmoidGradient {
  using A = Accumulate<T>;
  Extents x;
  int width;
  const T* raw;
  A factor;
  const A* d_out;
  T* d_raw;
  KOKKOS_INLINE_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t row = team.league_rank();
    const bool covered = x.covers(row);
    const T* in = raw + row * width;
    const A* incoming = d_out + row * width;
    T* out = d_raw + row * width;
    const A scale = factor;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width), [=](int c) {
      const A value = static_cast<A>(in[c]);
      const A result = incoming[c] * (scale * (sigmoid(value) * sigmoid(-value)));
      out[c] = covered ? static_cast<T>(result) : T(0);
    });
  }
};

double factor_of(BetaActivation beta) {
  return beta == BetaActivation::doubled_sigmoid ? 2.0 : 1.0;
}

template <class T>
Tensor<Plain<T>> sigmoid_of(Runtime& runtime, const char* name, const Tensor<T>& raw, double factor) {
  using A = Accumulate<T>;
  auto out = runtime.allocate<A>(name, raw.shape());
  for_each_index(runtime.compute(), "deltaport: recurrence sigmoid", raw.size(),
                 ScaledSigmoid<T>{raw.data(), static_cast<A>(factor), out.data()});
  return out;
}

template <class T>
Tensor<T> sigmoid_gradient(Runtime& runtime, const Extents& x, const char* name, const Tensor<T>& raw,
                           double factor, const Tensor<Plain<T>>& d_out) {
  auto d_raw = runtime.allocate<T>(name, raw.shape());
  const auto width = static_cast<int>(raw.size() / x.rows());
  for_each_row(runtime.compute(), "deltaport: recurrence sigmoid gradient", x.rows(),
               ScaledSigmoidGradient<T>{x, width, raw.data(), static_cast<Accumulate<T>>(factor),
                                        d_out.data(), d_raw.data()});
  return d_raw;
}

template <class T, class Inputs>
RawGate<T> raw_gate(const Inputs& in, int channels) {
  return {in.raw_gate, in.A_log, in.dt_bias, channels};
}

/// What both rules share.
template <class T, class Inputs, class Out>
void prepare_shared(Runtime& runtime, const Extents& x, const Inputs& in, const Options& options,
                    int channels, Out& out) {
  using A = Accumulate<T>;
  const bool normalised = options.qk_norm == QkNorm::l2;
  out.q =
      normalised ? l2_normalised(runtime, "recurrence q", in.q) : converted<A>(runtime, "recurrence q", in.q);
  out.k =
      normalised ? l2_normalised(runtime, "recurrence k", in.k) : converted<A>(runtime, "recurrence k", in.k);
  out.v = converted<A>(runtime, "recurrence v", in.v);
  out.g = options.gate == GateActivation::log_decay
              ? in.g
              : gate_forward(runtime, x, raw_gate<T>(in, channels), options);
  out.initial_state = in.initial_state;
  out.cu_seqlens = in.cu_seqlens;
}

template <class T, class Inputs, class From, class Out>
void finish_shared(Runtime& runtime, const Extents& x, const Inputs& in, const Options& options, int channels,
                   const From& from, Out& out) {
  if (options.qk_norm == QkNorm::l2) {
    out.dq = l2_gradient(runtime, x, "recurrence dq", in.q, from.dq);
    out.dk = l2_gradient(runtime, x, "recurrence dk", in.k, from.dk);
  } else {
    out.dq = converted<T>(runtime, "recurrence dq", from.dq);
    out.dk = converted<T>(runtime, "recurrence dk", from.dk);
  }
  out.dv = converted<T>(runtime, "recurrence dv", from.dv);
  out.dinitial_state = from.dinitial_state;
  if (options.gate == GateActivation::log_decay) {
    out.dg = from.dg;
    return;
  }
  const auto gate = gate_backward(runtime, x, raw_gate<T>(in, channels), options, from.dg);
  out.d_raw_gate = gate.d_raw;
  out.dA_log = gate.dA_log;
  out.ddt_bias = gate.ddt_bias;
}

}  // namespace

template <class To, class X>
Tensor<To> converted(Runtime& runtime, const char* name, const Tensor<X>& x) {
  if constexpr (std::is_same_v<To, X>) {
    return x;
  } else {
    auto out = runtime.allocate<To>(name, x.shape());
    for_each_index(runtime.compute(), "deltaport: recurrence conversion", x.size(),
                   Convert<X, To>{x.data(), out.data()});
    return out;
  }
}

Options plain_options(Options options) {
  options.qk_norm = QkNorm::none;
  options.gate = GateActivation::log_decay;
  options.beta = BetaActivation::plain;
  options.write_gate = WriteGate::plain;
  return options;
}

template <class T>
GdnInputs<Plain<T>> prepare(Runtime& runtime, const Extents& x, const GdnInputs<T>& in,
                            const Options& options) {
  GdnInputs<Plain<T>> out;
  prepare_shared<T>(runtime, x, in, options, 1, out);
  out.beta = options.beta == BetaActivation::plain
                 ? in.beta
                 : sigmoid_of(runtime, "recurrence beta", in.raw_beta, factor_of(options.beta));
  return out;
}

template <class T>
Gdn2Inputs<Plain<T>> prepare(Runtime& runtime, const Extents& x, const Gdn2Inputs<T>& in,
                             const Options& options) {
  Gdn2Inputs<Plain<T>> out;
  prepare_shared<T>(runtime, x, in, options, x.key_dim, out);
  out.b = options.beta == BetaActivation::plain
              ? converted<Plain<T>>(runtime, "recurrence b", in.b)
              : sigmoid_of(runtime, "recurrence b", in.b, factor_of(options.beta));
  out.w = options.write_gate == WriteGate::plain ? converted<Plain<T>>(runtime, "recurrence w", in.w)
                                                 : sigmoid_of(runtime, "recurrence w", in.w, 1.0);
  return out;
}

template <class T>
GdnGradients<T> finish(Runtime& runtime, const Extents& x, const GdnInputs<T>& in, const Options& options,
                       const GdnGradients<Plain<T>>& from) {
  GdnGradients<T> out;
  finish_shared<T>(runtime, x, in, options, 1, from, out);
  if (options.beta == BetaActivation::plain)
    out.dbeta = from.dbeta;
  else
    out.d_raw_beta = sigmoid_gradient(runtime, x, "recurrence d_raw_beta", in.raw_beta,
                                      factor_of(options.beta), from.dbeta);
  return out;
}

template <class T>
Gdn2Gradients<T> finish(Runtime& runtime, const Extents& x, const Gdn2Inputs<T>& in, const Options& options,
                        const Gdn2Gradients<Plain<T>>& from) {
  Gdn2Gradients<T> out;
  finish_shared<T>(runtime, x, in, options, x.key_dim, from, out);
  out.db = options.beta == BetaActivation::plain
               ? converted<T>(runtime, "recurrence db", from.db)
               : sigmoid_gradient(runtime, x, "recurrence db", in.b, factor_of(options.beta), from.db);
  out.dw = options.write_gate == WriteGate::plain
               ? converted<T>(runtime, "recurrence dw", from.dw)
               : sigmoid_gradient(runtime, x, "recurrence dw", in.w, 1.0, from.dw);
  return out;
}

#define DELTAPORT_INSTANTIATE(T)                                                                            \
  template GdnInputs<Plain<T>> prepare<T>(Runtime&, const Extents&, const GdnInputs<T>&, const Options&);   \
  template Gdn2Inputs<Plain<T>> prepare<T>(Runtime&, const Extents&, const Gdn2Inputs<T>&, const Options&); \
  template GdnGradients<T> finish<T>(Runtime&, const Extents&, const GdnInputs<T>&, const Options&,         \
                                     const GdnGradients<Plain<T>>&);                                        \
  template Gdn2Gradients<T> finish<T>(Runtime&, const Extents&, const Gdn2Inputs<T>&, const Options&,       \
                                      const Gdn2Gradients<Plain<T>>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE
template Tensor<float> converted<float, float>(Runtime&, const char*, const Tensor<float>&);
template Tensor<double> converted<double, double>(Runtime&, const char*, const Tensor<double>&);
template Tensor<float> converted<float, bfloat16>(Runtime&, const char*, const Tensor<bfloat16>&);
template Tensor<float> converted<float, float16>(Runtime&, const char*, const Tensor<float16>&);
template Tensor<bfloat16> converted<bfloat16, float>(Runtime&, const char*, const Tensor<float>&);
template Tensor<float16> converted<float16, float>(Runtime&, const char*, const Tensor<float>&);

}  // namespace deltaport::recurrence
