// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/model/attention_mixer.hpp"
#include "model/attention_project.hpp"

namespace deltaport {

/// Writes keys [T, kv_heads, head_dim] and values (from the projections) of T tokens to the state: token t at
/// positions[t] of sequence sequence_of[t], or of sequence t where that is null.
template <class T>
void append_to_state(Runtime& runtime, const AttentionLayout& layout, const AttentionState<T>& state,
                     std::int64_t tokens, const std::int32_t* sequence_of, const std::int32_t* positions,
                     const T* projections, const T* k);

/// Writes o [N, heads, head_dim]: softmax attention of q, one token of each sequence, over the lengths[n] + 1
/// first tokens of the state.
template <class T>
void attend_to_state(Runtime& runtime, const AttentionLayout& layout, const AttentionState<T>& state,
                     const T* q, T* o);

}  // namespace deltaport
