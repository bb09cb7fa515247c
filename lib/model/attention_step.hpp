// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/model/attention_mixer.hpp"
#include "model/attention_project.hpp"

namespace deltaport {

/// Appends this token's keys [N, kv_heads, head_dim] and values (from the projections) to the state at
/// state.length, and writes o [N, heads, head_dim]: softmax attention of q over the state, the new token
/// included. Leaves state.length alone.
template <class T>
void attend_to_state(Runtime& runtime, const AttentionLayout& layout, const AttentionState<T>& state,
                     const T* projections, const T* q, const T* k, T* o);

}  // namespace deltaport
