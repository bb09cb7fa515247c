// SPDX-License-Identifier: Apache-2.0
// Public functions: check arguments, resolve options, call one implementation, through prepare() and finish()
// where it does not take the call as it came.
#include "deltaport/recurrence/recurrence.hpp"

#include "recurrence/choose.hpp"
#include "recurrence/validate.hpp"

namespace deltaport::recurrence {
namespace {

template <class Inputs>
struct RuleOf;
template <class T>
struct RuleOf<GdnInputs<T>> {
  static constexpr Rule rule = Rule::gdn;
  using Saved = GdnSaved<T>;
  using Gradients = GdnGradients<T>;
};
template <class T>
struct RuleOf<Gdn2Inputs<T>> {
  static constexpr Rule rule = Rule::gdn2;
  using Saved = Gdn2Saved<T>;
  using Gradients = Gdn2Gradients<T>;
};

[[noreturn]] void no_such_type() {
  throw Error("recurrence: the implementation was given a type that it does not take");
}

template <class T, class Inputs>
ForwardResult<typename RuleOf<Inputs>::Saved, T> call_forward(Runtime& runtime, const Extents& x,
                                                              const Inputs& inputs, const Options& options) {
  if constexpr (!std::is_same_v<T, double>) {
    if (options.implementation == Implementation::cuda) return cuda::forward<T>(runtime, x, inputs, options);
    if (options.implementation == Implementation::host) return host::forward<T>(runtime, x, inputs, options);
  }
  if constexpr (is_half<T>)
    no_such_type();
  else
    return options.implementation == Implementation::reference
               ? reference::forward<T>(runtime, x, inputs, options)
               : portable::forward<T>(runtime, x, inputs, options);
}

template <class T, class Saved>
auto call_backward(Runtime& runtime, const Extents& x, const Saved& saved, const Tensor<T>& d_o,
                   const Tensor<Accumulate<T>>& d_final_state) ->
    typename RuleOf<decltype(saved.inputs)>::Gradients {
  if constexpr (!std::is_same_v<T, double>) {
    if (saved.options.implementation == Implementation::cuda)
      return cuda::backward<T>(runtime, x, saved, d_o, d_final_state);
    if (saved.options.implementation == Implementation::host)
      return host::backward<T>(runtime, x, saved, d_o, d_final_state);
  }
  if constexpr (is_half<T>)
    no_such_type();
  else
    return saved.options.implementation == Implementation::reference
               ? reference::backward<T>(runtime, x, saved, d_o, d_final_state)
               : portable::backward<T>(runtime, x, saved, d_o, d_final_state);
}

template <class T, class Inputs>
Tensor<T> call_step(Runtime& runtime, const Extents& x, const Inputs& inputs, const States<T>& states,
                    const Options& options) {
  if constexpr (!std::is_same_v<T, double>)
    if (options.implementation == Implementation::cuda)
      return cuda::step<T>(runtime, x, inputs, states, options);
  if constexpr (is_half<T>)
    no_such_type();
  else
    return reference::step<T>(runtime, x, inputs, states, options);
}

// Saved tensors of a prepared call, kept under T and found again. Those in T itself go by their own names.
template <class T>
void keep(GdnSaved<T>& to, const GdnSaved<Plain<T>>& from) {
  to.g_cumsum = from.g_cumsum;
  if constexpr (is_half<T>)
    to.wide_inverse = from.inverse;
  else
    to.inverse = from.inverse;
}
template <class T>
void keep(Gdn2Saved<T>& to, const Gdn2Saved<Plain<T>>& from) {
  to.g_cumsum = from.g_cumsum;
  if constexpr (is_half<T>) {
    to.wide_scores = from.scores;
    to.wide_inverse = from.inverse;
  } else {
    to.scores = from.scores;
    to.inverse = from.inverse;
  }
}
template <class T>
GdnSaved<Plain<T>> find(const GdnSaved<T>& saved) {
  GdnSaved<Plain<T>> out;
  out.g_cumsum = saved.g_cumsum;
  if constexpr (is_half<T>)
    out.inverse = saved.wide_inverse;
  else
    out.inverse = saved.inverse;
  return out;
}
template <class T>
Gdn2Saved<Plain<T>> find(const Gdn2Saved<T>& saved) {
  Gdn2Saved<Plain<T>> out;
  out.g_cumsum = saved.g_cumsum;
  if constexpr (is_half<T>) {
    out.scores = saved.wide_scores;
    out.inverse = saved.wide_inverse;
  } else {
    out.scores = saved.scores;
    out.inverse = saved.inverse;
  }
  return out;
}

template <class T, class Inputs>
auto forward(const char* operation, Runtime& runtime, const Inputs& inputs, const Options& options) {
  check_options(operation, options);
  const Extents x = check_inputs(operation, inputs, options);
  const Options resolved = resolve(operation, Call::chunked, RuleOf<Inputs>::rule, x, dtype_of<T>, options);
  ForwardResult<typename RuleOf<Inputs>::Saved, T> result;
  if (takes_directly<T>(resolved)) {
    result = call_forward<T>(runtime, x, inputs, resolved);
  } else {
    auto wide =
        call_forward<Plain<T>>(runtime, x, prepare(runtime, x, inputs, resolved), plain_options(resolved));
    result.o = converted<T>(runtime, "recurrence o", wide.o);
    result.final_state = wide.final_state;
    keep(result.saved, wide.saved);
  }
  if (options.save_for_backward) {
    result.saved.inputs = inputs;
    result.saved.options = resolved;
  }
  return result;
}

/// What portable's backward reads besides the inputs.
template <class X>
void check_saved(const char* operation, const Extents& x, const Options& options, const Tensor<X>& saved,
                 const char* name) {
  if (options.implementation != Implementation::portable) return;
  const Shape expected{x.batch, x.tokens, x.value_heads, options.chunk_size};
  DELTAPORT_VALIDATE(saved.defined() && saved.shape() == expected, ShapeError, operation, ": saved.", name,
                     " has shape ", saved.shape().str(), ", expected [B, T, HV, C] = ", expected.str());
}
template <class T>
void check_saved(const char* operation, const Extents& x, const GdnSaved<T>& saved) {
  if constexpr (is_half<T>)
    check_saved(operation, x, saved.options, saved.wide_inverse, "wide_inverse");
  else
    check_saved(operation, x, saved.options, saved.inverse, "inverse");
}
template <class T>
void check_saved(const char* operation, const Extents& x, const Gdn2Saved<T>& saved) {
  if constexpr (is_half<T>) {
    check_saved(operation, x, saved.options, saved.wide_scores, "wide_scores");
    check_saved(operation, x, saved.options, saved.wide_inverse, "wide_inverse");
  } else {
    check_saved(operation, x, saved.options, saved.scores, "scores");
    check_saved(operation, x, saved.options, saved.inverse, "inverse");
  }
}

template <class T, class Saved>
auto backward(const char* operation, Runtime& runtime, const Saved& saved, const Tensor<T>& d_o,
              const Tensor<Accumulate<T>>& d_final_state) {
  DELTAPORT_VALIDATE(saved.inputs.q.defined(), ShapeError, operation,
                     ": saved is empty; run forward with save_for_backward");
  const Options& options = saved.options;
  const Extents x = check_inputs(operation, saved.inputs, options);
  check_saved(operation, x, saved);
  check_gradients(operation, x, d_o, d_final_state);
  if (takes_directly<T>(options)) return call_backward<T>(runtime, x, saved, d_o, d_final_state);
  auto wide = find(saved);
  wide.options = plain_options(options);
  wide.inputs = prepare(runtime, x, saved.inputs, options);
  const auto gradients = call_backward<Plain<T>>(
      runtime, x, wide, converted<Plain<T>>(runtime, "recurrence d_o", d_o), d_final_state);
  wide = {};
  return finish(runtime, x, saved.inputs, options, gradients);
}

template <class T, class Inputs>
Tensor<T> step(const char* operation, Runtime& runtime, const Inputs& inputs,
               const Tensor<Accumulate<T>>& state, const Options& options,
               const Tensor<std::int32_t>& state_indices) {
  check_options(operation, options);
  const Extents x = check_step(operation, inputs, state, options, state_indices);
  const Options resolved = resolve(operation, Call::step, RuleOf<Inputs>::rule, x, dtype_of<T>, options);
  if (resolved.implementation == Implementation::cuda || (!is_half<T> && plain(resolved)))
    return call_step<T>(runtime, x, inputs, {state, state_indices}, resolved);
  const auto o = call_step<Plain<T>>(runtime, x, prepare(runtime, x, inputs, resolved),
                                     {state, state_indices}, plain_options(resolved));
  return converted<T>(runtime, "recurrence o", o);
}

}  // namespace

template <class T>
ForwardResult<GdnSaved<T>, T> gdn_forward(Runtime& runtime, const GdnInputs<T>& inputs,
                                          const Options& options) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn forward");
  return forward<T>("gdn_forward", runtime, inputs, options);
}
template <class T>
ForwardResult<Gdn2Saved<T>, T> gdn2_forward(Runtime& runtime, const Gdn2Inputs<T>& inputs,
                                            const Options& options) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn2 forward");
  return forward<T>("gdn2_forward", runtime, inputs, options);
}
template <class T>
GdnGradients<T> gdn_backward(Runtime& runtime, const GdnSaved<T>& saved, const Tensor<T>& d_o,
                             const Tensor<Accumulate<T>>& d_final_state) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn backward");
  return backward<T>("gdn_backward", runtime, saved, d_o, d_final_state);
}
template <class T>
Gdn2Gradients<T> gdn2_backward(Runtime& runtime, const Gdn2Saved<T>& saved, const Tensor<T>& d_o,
                               const Tensor<Accumulate<T>>& d_final_state) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn2 backward");
  return backward<T>("gdn2_backward", runtime, saved, d_o, d_final_state);
}
template <class T>
Tensor<T> gdn_step(Runtime& runtime, const GdnInputs<T>& inputs, const Tensor<Accumulate<T>>& state,
                   const Options& options, const Tensor<std::int32_t>& state_indices) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn step");
  return step<T>("gdn_step", runtime, inputs, state, options, state_indices);
}
template <class T>
Tensor<T> gdn2_step(Runtime& runtime, const Gdn2Inputs<T>& inputs, const Tensor<Accumulate<T>>& state,
                    const Options& options, const Tensor<std::int32_t>& state_indices) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn2 step");
  return step<T>("gdn2_step", runtime, inputs, state, options, state_indices);
}

#define DELTAPORT_INSTANTIATE(T)                                                                           \
  template ForwardResult<GdnSaved<T>, T> gdn_forward<T>(Runtime&, const GdnInputs<T>&, const Options&);    \
  template ForwardResult<Gdn2Saved<T>, T> gdn2_forward<T>(Runtime&, const Gdn2Inputs<T>&, const Options&); \
  template GdnGradients<T> gdn_backward<T>(Runtime&, const GdnSaved<T>&, const Tensor<T>&,                 \
                                           const Tensor<Accumulate<T>>&);                                  \
  template Gdn2Gradients<T> gdn2_backward<T>(Runtime&, const Gdn2Saved<T>&, const Tensor<T>&,              \
                                             const Tensor<Accumulate<T>>&);                                \
  template Tensor<T> gdn_step<T>(Runtime&, const GdnInputs<T>&, const Tensor<Accumulate<T>>&,              \
                                 const Options&, const Tensor<std::int32_t>&);                             \
  template Tensor<T> gdn2_step<T>(Runtime&, const Gdn2Inputs<T>&, const Tensor<Accumulate<T>>&,            \
                                  const Options&, const Tensor<std::int32_t>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence
