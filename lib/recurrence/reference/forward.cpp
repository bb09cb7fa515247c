// SPDX-License-Identifier: Apache-2.0
#include "recurrence/reference/forward.hpp"

#include "recurrence/implementations.hpp"
#include "recurrence/rows.hpp"

namespace deltaport::recurrence::reference {
namespace {

template <class T, class Inputs>
Tensor<T> run(Runtime& runtime, const Extents& x, const Inputs& inputs, double scale,
              const States<T>& states) {
  using A = Accumulate<T>;
  auto o = runtime.allocate<T>("recurrence o", {x.batch, x.tokens, x.value_heads, x.value_dim});
  const auto call = make_call<T>(x, inputs, scale);
  enqueue_kernel("deltaport: recurrence reference forward",
                 head_policy(runtime.compute(), x.sequences * x.value_heads, scratch_bytes<A>(x, 1)),
                 Forward<T, decltype(call.gates)>{call, states.state.data(), o.data(), nullptr,
                                                  states.indices.data(), states.state.extent(0)});
  zero_uncovered_rows(runtime.compute(), x, o);
  return o;
}

template <class Saved, class T, class Inputs>
ForwardResult<Saved, T> run_forward(Runtime& runtime, const Extents& x, const Inputs& inputs,
                                    const Options& options) {
  auto state = runtime.allocate<Accumulate<T>>("recurrence state",
                                               {x.sequences, x.value_heads, x.key_dim, x.value_dim});
  if (inputs.initial_state.defined())
    copy(runtime.compute(), state, inputs.initial_state);
  else
    set_zero(runtime.compute(), state);
  ForwardResult<Saved, T> result;
  result.o = run<T>(runtime, x, inputs, options.scale, States<T>{state, {}});
  if (options.output_final_state) result.final_state = state;
  return result;
}

}  // namespace

template <class T>
ForwardResult<GdnSaved<T>, T> forward(Runtime& runtime, const Extents& x, const GdnInputs<T>& inputs,
                                      const Options& options) {
  return run_forward<GdnSaved<T>, T>(runtime, x, inputs, options);
}
template <class T>
ForwardResult<Gdn2Saved<T>, T> forward(Runtime& runtime, const Extents& x, const Gdn2Inputs<T>& inputs,
                                       const Options& options) {
  return run_forward<Gdn2Saved<T>, T>(runtime, x, inputs, options);
}
template <class T>
Tensor<T> step(Runtime& runtime, const Extents& x, const GdnInputs<T>& inputs, const States<T>& states,
               const Options& options) {
  return run<T>(runtime, x, inputs, options.scale, states);
}
template <class T>
Tensor<T> step(Runtime& runtime, const Extents& x, const Gdn2Inputs<T>& inputs, const States<T>& states,
               const Options& options) {
  return run<T>(runtime, x, inputs, options.scale, states);
}

#define DELTAPORT_INSTANTIATE(T)                                                                     \
  template ForwardResult<GdnSaved<T>, T> forward<T>(Runtime&, const Extents&, const GdnInputs<T>&,   \
                                                    const Options&);                                 \
  template ForwardResult<Gdn2Saved<T>, T> forward<T>(Runtime&, const Extents&, const Gdn2Inputs<T>&, \
                                                     const Options&);                                \
  template Tensor<T> step<T>(Runtime&, const Extents&, const GdnInputs<T>&, const States<T>&,        \
                             const Options&);                                                        \
  template Tensor<T> step<T>(Runtime&, const Extents&, const Gdn2Inputs<T>&, const States<T>&,       \
                             const Options&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence::reference
