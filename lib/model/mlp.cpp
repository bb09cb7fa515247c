// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/mlp.hpp"

#include "deltaport/core/gemm.hpp"
#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/row_sum.hpp"
#include "model/swiglu_packs.hpp"

namespace deltaport {
namespace {

/// a = silu(gate) up, one token per team; a row of gate_up holds the gates first.
template <class T>
struct SwiGlu {
  using R = Accumulate<T>;
  std::int64_t inner;
  const T* gate_up;
  T* a;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t row = team.league_rank();
    const T* gate = gate_up + row * 2 * inner;
    const T* up = gate + inner;
    T* out = a + row * inner;
    row_for(team, inner, [=](const std::int64_t i) {
      out[i] = static_cast<T>(silu(static_cast<R>(gate[i])) * static_cast<R>(up[i]));
    });
  }
};

/// Given da in `a`: writes a = silu(gate) up there, and the gradients of gate and up over gate and up.
template <class T>
struct SwiGluBackward {
  using R = Accumulate<T>;
  std::int64_t inner;
  T* gate_up;
  T* a;
  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t row = team.league_rank();
    T* gate = gate_up + row * 2 * inner;
    T* up = gate + inner;
    T* act = a + row * inner;
    row_for(team, inner, [=](const std::int64_t i) {
      const R g = static_cast<R>(gate[i]), u = static_cast<R>(up[i]), da = static_cast<R>(act[i]);
      const R s = sigmoid(g);
      const R value = g * s;
      act[i] = static_cast<T>(value * u);
      up[i] = static_cast<T>(da * value);
      gate[i] = static_cast<T>(da * u * (s + value * (R(1) - s)));
    });
  }
};

}  // namespace

template <class T>
Mlp<T>::Mlp(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config)
    : hidden_(config.hidden_size), inner_(config.intermediate_size), prefix_(prefix) {
  DELTAPORT_VALIDATE(hidden_ > 0 && inner_ > 0, ConfigError, prefix, ": hidden_size = ", hidden_,
                     " and intermediate_size = ", inner_, " must be positive");
  const Initializer init{Initializer::Kind::normal, config.initializer_range, 0.0};
  gate_up_ = {&parameters, parameters.declare_fused(
                               {{prefix + ".gate_proj.weight", Shape{inner_, hidden_}, 0, true, init},
                                {prefix + ".up_proj.weight", Shape{inner_, hidden_}, 0, true, init}})};
  down_ = {&parameters, parameters.declare(prefix + ".down_proj.weight", Shape{hidden_, inner_}, true, init)};
}

template <class T>
Tensor<T> Mlp<T>::forward(Context& context, const Tensor<T>& x) const {
  Runtime& runtime = context.runtime;
  WorkScope scope(runtime, Work::elementwise, "deltaport: mlp forward");
  DELTAPORT_VALIDATE(x.rank() == 2 && x.extent(1) == hidden_, ShapeError, prefix_, ": x must be [T, ",
                     hidden_, "], got ", x.shape().str());
  const std::int64_t tokens = x.extent(0);
  const auto gate_up = runtime.allocate<T>("mlp gate_up", Shape{tokens, 2 * inner_});
  const auto a = runtime.allocate<T>("mlp activation", Shape{tokens, inner_});
  const auto y = runtime.allocate<T>("mlp output", x.shape());
  linear_forward<T>(runtime, tokens, hidden_, 2 * inner_, x.data(), hidden_, gate_up_.value().data(),
                    gate_up.data(), 2 * inner_);
  if (packable(inner_, {gate_up.data(), a.data()}))
    for_each_index(context.exec(), "deltaport: swiglu forward", a.size() / pack_width,
                   PackedSwiGlu<T>{inner_, gate_up.data(), a.data()});
  else
    for_each_row(context.exec(), "deltaport: swiglu forward", tokens,
                 SwiGlu<T>{inner_, gate_up.data(), a.data()});
  linear_forward<T>(runtime, tokens, inner_, hidden_, a.data(), inner_, down_.value().data(), y.data(),
                    hidden_);
  if (context.training()) {
    context.saved.open("mlp");
    context.saved.save(x);
    context.saved.save(gate_up);
    context.saved.commit();
  }
  return y;
}

template <class T>
Tensor<T> Mlp<T>::backward(Context& context, const Tensor<T>& dy) const {
  Runtime& runtime = context.runtime;
  WorkScope scope(runtime, Work::elementwise, "deltaport: mlp backward");
  const Tensor<T> gate_up = context.saved.template take<T>();
  const Tensor<T> x = context.saved.template take<T>();
  DELTAPORT_VALIDATE(dy.shape() == x.shape(), ShapeError, prefix_, ": dy is ", dy.shape().str(),
                     " but x was ", x.shape().str());
  const std::int64_t tokens = x.extent(0);
  const auto a = runtime.allocate<T>("mlp activation gradient", Shape{tokens, inner_});
  const auto dx = runtime.allocate<T>("mlp dx", x.shape());
  linear_backward_input<T>(runtime, tokens, inner_, hidden_, dy.data(), hidden_, down_.value().data(), 0,
                           a.data(), inner_);
  if (packable(inner_, {gate_up.data(), a.data()}))
    for_each_index(context.exec(), "deltaport: swiglu backward", a.size() / pack_width,
                   PackedSwiGluBackward<T>{inner_, gate_up.data(), a.data()});
  else
    for_each_row(context.exec(), "deltaport: swiglu backward", tokens,
                 SwiGluBackward<T>{inner_, gate_up.data(), a.data()});
  linear_backward_weight<T>(runtime, tokens, inner_, hidden_, dy.data(), hidden_, a.data(), inner_,
                            down_.gradient().data());
  linear_backward_input<T>(runtime, tokens, hidden_, 2 * inner_, gate_up.data(), 2 * inner_,
                           gate_up_.value().data(), 0, dx.data(), hidden_);
  linear_backward_weight<T>(runtime, tokens, hidden_, 2 * inner_, gate_up.data(), 2 * inner_, x.data(),
                            hidden_, gate_up_.gradient().data());
  return dx;
}

template class Mlp<bfloat16>;
template class Mlp<float>;
template class Mlp<double>;

}  // namespace deltaport
