// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "deltaport/recurrence/recurrence.hpp"
#include "recurrence/extents.hpp"

/// What each implementation offers to the dispatcher: arguments are already checked, implementation and scale
/// are resolved.
///
/// `reference` and `portable` see plain calls only: T is float or double, every option of plain(), and thus g
/// and beta given. `host` sees plain calls of float and of halves; double goes to others. What a caller asks
/// beyond that, the dispatcher turns into such a call and back (activations.hpp). `cuda` gets every call as it
/// came, halves and options included, and does them itself.
///
/// Each may refuse sizes: supports(), and limits() for the message, which says what would be accepted. What
/// supports() allows, forward and backward must do, for every initial state, cu_seqlens and heads.
namespace deltaport::recurrence {

enum class Rule { gdn, gdn2 };

/// Nothing for activations.hpp to do but widen halves.
inline bool plain(const Options& options) {
  return options.qk_norm == QkNorm::none && options.gate == GateActivation::log_decay &&
         options.beta == BetaActivation::plain && options.write_gate == WriteGate::plain;
}

#define DELTAPORT_DECLARE_CHUNKED                                                                         \
  template <class T>                                                                                      \
  ForwardResult<GdnSaved<T>, T> forward(Runtime&, const Extents&, const GdnInputs<T>&, const Options&);   \
  template <class T>                                                                                      \
  ForwardResult<Gdn2Saved<T>, T> forward(Runtime&, const Extents&, const Gdn2Inputs<T>&, const Options&); \
  template <class T>                                                                                      \
  GdnGradients<T> backward(Runtime&, const Extents&, const GdnSaved<T>&, const Tensor<T>& d_o,            \
                           const Tensor<Accumulate<T>>& d_final_state);                                   \
  template <class T>                                                                                      \
  Gdn2Gradients<T> backward(Runtime&, const Extents&, const Gdn2Saved<T>&, const Tensor<T>& d_o,          \
                            const Tensor<Accumulate<T>>& d_final_state);
#define DELTAPORT_DECLARE_STEP                                                                            \
  template <class T>                                                                                      \
  Tensor<T> step(Runtime&, const Extents&, const GdnInputs<T>&, const States<T>& states, const Options&); \
  template <class T>                                                                                      \
  Tensor<T> step(Runtime&, const Extents&, const Gdn2Inputs<T>&, const States<T>& states, const Options&);

/// States of a step. Sequence n has slot n, or indices[n]; a slot outside [0, slots) is inert: o = 0.
template <class T>
struct States {
  Tensor<Accumulate<T>> state;   // [slots, HV, K, V]
  Tensor<std::int32_t> indices;  // [N] or empty
};

namespace reference {  // float, double
DELTAPORT_DECLARE_CHUNKED
DELTAPORT_DECLARE_STEP
}  // namespace reference

namespace portable {  // float, double; steps are those of reference
DELTAPORT_DECLARE_CHUNKED
}  // namespace portable

namespace host {  // bfloat16, float16, float; steps are those of reference
bool available();
bool supports(Rule, const Extents&, Dtype, const Options&);
std::string_view limits();
DELTAPORT_DECLARE_CHUNKED
}  // namespace host

namespace cuda {  // bfloat16, float16, float
bool available();
bool supports(Rule, const Extents&, Dtype, const Options&);
bool supports_step(Rule, const Extents&, Dtype, const Options&);
std::string_view limits();
DELTAPORT_DECLARE_CHUNKED
DELTAPORT_DECLARE_STEP
}  // namespace cuda

#undef DELTAPORT_DECLARE_CHUNKED
#undef DELTAPORT_DECLARE_STEP

}  // namespace deltaport::recurrence
