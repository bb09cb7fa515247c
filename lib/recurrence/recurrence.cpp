// SPDX-License-Identifier: Apache-2.0
// Public functions: check arguments, resolve options, call one implementation.
#include "deltaport/recurrence/recurrence.hpp"

#include <cmath>

#include "recurrence/implementations.hpp"
#include "recurrence/validate.hpp"

namespace deltaport::recurrence {
namespace {

Options resolve(const Extents& x, Options options) {
  if (options.scale == 0.0) options.scale = 1.0 / std::sqrt(static_cast<double>(x.key_dim));
  if (options.implementation == Implementation::automatic) options.implementation = Implementation::portable;
  return options;
}

template <class T, class Inputs>
auto forward(const char* operation, Runtime& runtime, const Inputs& inputs, const Options& options) {
  check_options(operation, options);
  const Extents x = check_inputs(operation, inputs);
  const Options resolved = resolve(x, options);
  auto result = resolved.implementation == Implementation::reference
                    ? reference::forward<T>(runtime, x, inputs, resolved)
                    : portable::forward<T>(runtime, x, inputs, resolved);
  if (options.save_for_backward) {
    result.saved.inputs = inputs;
    result.saved.options = resolved;
  }
  return result;
}

/// What portable's backward reads besides the inputs.
template <class T>
void check_saved(const char* operation, const Extents& x, const Options& options, const Tensor<T>& saved,
                 const char* name) {
  if (options.implementation == Implementation::reference) return;
  const Shape expected{x.batch, x.tokens, x.value_heads, options.chunk_size};
  DELTAPORT_VALIDATE(saved.defined() && saved.shape() == expected, ShapeError, operation, ": saved.", name,
                     " has shape ", saved.shape().str(), ", expected [B, T, HV, C] = ", expected.str());
}
template <class T>
void check_saved(const char* operation, const Extents& x, const GdnSaved<T>& saved) {
  check_saved(operation, x, saved.options, saved.inverse, "inverse");
}
template <class T>
void check_saved(const char* operation, const Extents& x, const Gdn2Saved<T>& saved) {
  check_saved(operation, x, saved.options, saved.scores, "scores");
  check_saved(operation, x, saved.options, saved.inverse, "inverse");
}

template <class T, class Saved>
auto backward(const char* operation, Runtime& runtime, const Saved& saved, const Tensor<T>& d_o,
              const Tensor<Accumulate<T>>& d_final_state) {
  DELTAPORT_VALIDATE(saved.inputs.q.defined(), ShapeError, operation,
                     ": saved is empty; run forward with save_for_backward");
  const Extents x = check_inputs(operation, saved.inputs);
  check_saved(operation, x, saved);
  check_gradients(operation, x, d_o, d_final_state);
  return saved.options.implementation == Implementation::reference
             ? reference::backward<T>(runtime, x, saved, d_o, d_final_state)
             : portable::backward<T>(runtime, x, saved, d_o, d_final_state);
}

template <class T, class Inputs>
Tensor<T> step(const char* operation, Runtime& runtime, const Inputs& inputs,
               const Tensor<Accumulate<T>>& state, double scale) {
  const Extents x = check_step(operation, inputs, state);
  Options options;
  options.scale = scale;
  check_options(operation, options);
  return reference::step<T>(runtime, x, inputs, state, resolve(x, options).scale);
}

}  // namespace

std::string_view name_of(Implementation implementation) {
  switch (implementation) {
    case Implementation::reference:
      return "reference";
    case Implementation::portable:
      return "portable";
    default:
      return "auto";
  }
}

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
                   double scale) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn step");
  return step<T>("gdn_step", runtime, inputs, state, scale);
}
template <class T>
Tensor<T> gdn2_step(Runtime& runtime, const Gdn2Inputs<T>& inputs, const Tensor<Accumulate<T>>& state,
                    double scale) {
  WorkScope scope(runtime, Work::recurrence, "deltaport: gdn2 step");
  return step<T>("gdn2_step", runtime, inputs, state, scale);
}

#define DELTAPORT_INSTANTIATE(T)                                                                           \
  template ForwardResult<GdnSaved<T>, T> gdn_forward<T>(Runtime&, const GdnInputs<T>&, const Options&);    \
  template ForwardResult<Gdn2Saved<T>, T> gdn2_forward<T>(Runtime&, const Gdn2Inputs<T>&, const Options&); \
  template GdnGradients<T> gdn_backward<T>(Runtime&, const GdnSaved<T>&, const Tensor<T>&,                 \
                                           const Tensor<Accumulate<T>>&);                                  \
  template Gdn2Gradients<T> gdn2_backward<T>(Runtime&, const Gdn2Saved<T>&, const Tensor<T>&,              \
                                             const Tensor<Accumulate<T>>&);                                \
  template Tensor<T> gdn_step<T>(Runtime&, const GdnInputs<T>&, const Tensor<Accumulate<T>>&, double);     \
  template Tensor<T> gdn2_step<T>(Runtime&, const Gdn2Inputs<T>&, const Tensor<Accumulate<T>>&, double);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence
