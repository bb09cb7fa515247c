// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/recurrence/recurrence.hpp"
#include "recurrence/extents.hpp"

namespace deltaport::recurrence {

/// Each checks every argument (ShapeError names it) and returns the sizes of the call. `operation` opens the
/// message.
template <class T>
Extents check_inputs(const char* operation, const GdnInputs<T>& inputs, const Options& options);
template <class T>
Extents check_inputs(const char* operation, const Gdn2Inputs<T>& inputs, const Options& options);
void check_options(const char* operation, const Options& options);
/// T = 1, one state per batch entry or index, no initial state, no cu_seqlens.
template <class Inputs, class A>
Extents check_step(const char* operation, const Inputs& inputs, const Tensor<A>& state,
                   const Options& options, const Tensor<std::int32_t>& state_indices);
template <class T>
void check_gradients(const char* operation, const Extents& extents, const Tensor<T>& d_o,
                     const Tensor<Accumulate<T>>& d_final_state);

}  // namespace deltaport::recurrence
