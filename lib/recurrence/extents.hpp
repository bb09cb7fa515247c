// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/core/dtype.hpp"
#include "deltaport/core/parallel.hpp"

namespace deltaport::recurrence {

/// Flat token rows [begin, end) of one sequence; row = batch * T + token.
struct Span {
  std::int64_t begin, end;
};

/// Sizes of one call, as kernels need them.
struct Extents {
  std::int64_t batch = 0, tokens = 0;  // B, T
  std::int64_t sequences = 0;          // N
  int key_heads = 0, value_heads = 0;  // H, HV
  int gate_heads = 0;                  // heads of g (and of GDN2's b): HV, or H when shared by a group
  int key_dim = 0, value_dim = 0;      // K, V
  const std::int32_t* cu_seqlens = nullptr;

  KOKKOS_INLINE_FUNCTION std::int64_t rows() const { return batch * tokens; }
  KOKKOS_INLINE_FUNCTION int group() const { return value_heads / key_heads; }
  KOKKOS_INLINE_FUNCTION int key_head(int value_head) const { return value_head / group(); }
  KOKKOS_INLINE_FUNCTION int gate_head(int value_head) const {
    return gate_heads == value_heads ? value_head : value_head / group();
  }
  /// Clamped to the tensor, so that boundaries which could not be checked on a device never lead outside it.
  KOKKOS_INLINE_FUNCTION Span span(std::int64_t sequence) const {
    if (cu_seqlens == nullptr) return {sequence * tokens, (sequence + 1) * tokens};
    const std::int64_t begin = clamp(cu_seqlens[sequence]);
    const std::int64_t end = clamp(cu_seqlens[sequence + 1]);
    return {begin, end > begin ? end : begin};
  }
  /// Whether the flat token row belongs to a sequence.
  KOKKOS_INLINE_FUNCTION bool covers(std::int64_t row) const {
    return cu_seqlens == nullptr || (row >= cu_seqlens[0] && row < cu_seqlens[sequences]);
  }
  /// First slot of a sequence in an array with one slot per block of `length` tokens. Blocks restart at each
  /// sequence; slots of different sequences never overlap, and no sequence lengths are needed on the host.
  KOKKOS_INLINE_FUNCTION std::int64_t block_slot(std::int64_t sequence, int length) const {
    return span(sequence).begin / length + sequence;
  }
  std::int64_t block_slots(int length) const { return rows() / length + sequences + 1; }
  std::int64_t state_size() const { return std::int64_t{key_dim} * value_dim; }

 private:
  KOKKOS_INLINE_FUNCTION std::int64_t clamp(std::int64_t row) const {
    return row < 0 ? 0 : row > rows() ? rows() : row;
  }
};

}  // namespace deltaport::recurrence
