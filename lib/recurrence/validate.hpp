// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/recurrence/recurrence.hpp"
#include "recurrence/extents.hpp"

namespace deltaport::recurrence {

/// Each checks every argument (ShapeError names it) and returns the sizes of the call. `operation` opens the
/// message.
template <class T>
Extents check_inputs(const char* operation, const GdnInputs<T>& inputs);
template <class T>
Extents check_inputs(const char* operation, const Gdn2Inputs<T>& inputs);
void check_options(const char* operation, const Options& options);
/// T = 1, one state per batch entry, no initial state, no cu_seqlens.
template <class Inputs, class A>
Extents check_step(const char* operation, const Inputs& inputs, const Tensor<A>& state);
template <class T>
void check_gradients(const char* operation, const Extents& extents, const Tensor<T>& d_o,
                     const Tensor<Accumulate<T>>& d_final_state);

}  // namespace deltaport::recurrence
