// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"

namespace deltaport {

/// Layout of one token's projections: for each query head its query and its gate, then all keys, then all
/// values.
struct AttentionLayout {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;

  KOKKOS_FUNCTION std::int64_t width() const { return 2 * (heads + kv_heads) * head_dim; }
  KOKKOS_FUNCTION std::int64_t query_offset(std::int64_t head) const { return 2 * head * head_dim; }
  KOKKOS_FUNCTION std::int64_t gate_offset(std::int64_t head) const { return (2 * head + 1) * head_dim; }
  KOKKOS_FUNCTION std::int64_t key_offset(std::int64_t head) const { return (2 * heads + head) * head_dim; }
  KOKKOS_FUNCTION std::int64_t value_offset(std::int64_t head) const {
    return (2 * heads + kv_heads + head) * head_dim;
  }
};

/// Cosines, then sines, of position theta^(-2 i / rotary_dim): [tokens, rotary_dim]. Angles are formed and
/// reduced in double: in float32 an angle of 10^5 has lost its second decimal. Positions are positions[t] +
/// offset, or just `offset` when positions is null.
template <class T>
void rotation_table(Runtime& runtime, std::int64_t tokens, std::int64_t rotary_dim, double theta,
                    const std::int32_t* positions, std::int64_t offset, Accumulate<T>* table);

template <class T>
struct HeadNorms {
  const T* query_weight;  ///< [head_dim]
  const T* key_weight;    ///< [head_dim]
  double eps;
};

/// q [tokens, heads, head_dim] and k [tokens, kv_heads, head_dim] from the projections: norm over the head,
/// rotation.
template <class T>
void norm_and_rotate(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout,
                     const HeadNorms<T>& norms, const T* projections, const Accumulate<T>* table, T* q, T* k);

/// Writes the gradients of the query and key parts of the projections and adds to those of the norms'
/// weights. May overwrite dq and dk, which are of type T or Accumulate<T>.
template <class T, class D>
void norm_and_rotate_backward(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout,
                              const HeadNorms<T>& norms, const T* projections, const Accumulate<T>* table,
                              D* dq, D* dk, T* d_projections, Accumulate<T>* d_query_weight,
                              Accumulate<T>* d_key_weight);

/// y = o sigmoid(gate); o and y are [tokens, heads, head_dim].
template <class T>
void apply_gate(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout, const T* projections,
                const T* o, T* y);

/// Given dy: writes y again (for the output weight's gradient), do over dy, the gradient of the gates into
/// d_projections, and delta [heads, tokens] = sum over the head of o do.
template <class T>
void apply_gate_backward(Runtime& runtime, std::int64_t tokens, const AttentionLayout& layout,
                         const T* projections, const T* o, T* dy, T* y, T* d_projections,
                         Accumulate<T>* delta);

}  // namespace deltaport
