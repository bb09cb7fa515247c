// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "recurrence/cuda/tile.cuh"

/// Where chunks lie. Every sequence is cut into chunks of 64 tokens from its own start; chunk c of sequence s has
/// slot first_slot(s) + c in all per-chunk arrays.
namespace deltaport::recurrence::cuda {

/// Division of numbers below 2^31 by a number known on the host, as a multiplication (Granlund and Montgomery, "Division
/// by invariant integers using multiplication", 1994).
struct Divisor {
  std::uint32_t value = 1, factor = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(int divisor) : value(static_cast<std::uint32_t>(divisor)) {
    if (divisor <= 1) return;
    while ((std::uint64_t{2} << shift) < value) ++shift;
    factor = static_cast<std::uint32_t>(((std::uint64_t{1} << (32 + shift)) + value - 1) / value);
  }
  __device__ std::uint32_t quotient(std::uint32_t x) const {
    return factor == 0 ? x : __umulhi(x, factor) >> shift;
  }
};

struct Chunk {
  std::int64_t row;  ///< first row in the token axis of B * T rows
  int rows;          ///< 1 to 64; 0 for a slot without a chunk
};

/// What a block works on.
struct Task {
  std::int64_t slot;
  Chunk chunk;
  int head;
};

struct Chunks {
  std::int64_t tokens = 0;                   ///< T
  int sequences = 0;                         ///< N
  int chunks_per_sequence = 0;               ///< without cu_seqlens
  const std::int32_t* cu_seqlens = nullptr;  ///< [N + 1] or null
  Divisor by_sequences;                      ///< N
  const Chunk* table = nullptr;              ///< [slots], with cu_seqlens only

  __host__ __device__ std::int64_t slots() const {
    return cu_seqlens == nullptr ? std::int64_t{sequences} * chunks_per_sequence
                                 : tokens / chunk_rows + sequences + 1;
  }
  /// All of 64 rows, of sequences of one length.
  bool all_whole() const { return cu_seqlens == nullptr && tokens % chunk_rows == 0; }
  __device__ std::int64_t clamp(std::int64_t row) const { return row < 0 ? 0 : row > tokens ? tokens : row; }
  __device__ std::int64_t begin(int sequence) const {
    return cu_seqlens == nullptr ? sequence * tokens : clamp(cu_seqlens[sequence]);
  }
  __device__ std::int64_t length(int sequence) const {
    if (cu_seqlens == nullptr) return tokens;
    const std::int64_t length = clamp(cu_seqlens[sequence + 1]) - begin(sequence);
    return length > 0 ? length : 0;
  }
  __device__ std::int64_t first_slot(int sequence) const {
    return cu_seqlens == nullptr ? std::int64_t{sequence} * chunks_per_sequence
                                 : begin(sequence) / chunk_rows + sequence;
  }
  /// The slot of place i in the order of time, over all sequences at once, or against it. Kernels that follow each other
  /// go to and fro, so that each begins with what the one before has left in the second-level cache.
  __device__ std::int64_t in_time(std::uint32_t i, bool backwards) const {
    if (cu_seqlens != nullptr) return backwards ? slots() - 1 - i : i;
    const std::uint32_t own = by_sequences.quotient(i), sequence = i - own * by_sequences.value;
    const std::uint32_t chunk = backwards ? chunks_per_sequence - 1 - own : own;
    return std::int64_t{sequence} * chunks_per_sequence + chunk;
  }
  /// Slot and chunk of place i in the order of in_time, without a division; head 0.
  __device__ Task at_place(std::uint32_t i, bool backwards) const {
    if (cu_seqlens != nullptr) {
      const std::int64_t slot = in_time(i, backwards);
      return {slot, table[slot], 0};
    }
    const std::uint32_t turn = by_sequences.quotient(i), sequence = i - turn * by_sequences.value;
    const std::uint32_t own = backwards ? chunks_per_sequence - 1 - turn : turn;
    const std::int64_t first = std::int64_t{own} * chunk_rows, left = tokens - first;
    return {std::int64_t{sequence} * chunks_per_sequence + own,
            {sequence * tokens + first, static_cast<int>(left < chunk_rows ? left : chunk_rows)},
            0};
  }
  /// The task of block i of slots() times as many as there are `heads`: heads run fastest, then time.
  __device__ Task task(std::uint32_t i, const Divisor& heads, bool backwards) const {
    const std::uint32_t place = heads.quotient(i);
    Task task = at_place(place, backwards);
    task.head = static_cast<int>(i - place * heads.value);
    return task;
  }
  /// A block for every task.
  dim3 grid(int heads) const { return dim3(static_cast<unsigned>(slots() * heads)); }
  __device__ Chunk at(std::int64_t slot) const {
    if (cu_seqlens != nullptr) return table[slot];
    const std::int64_t sequence = slot / chunks_per_sequence;
    const std::int64_t first = (slot - sequence * chunks_per_sequence) * chunk_rows;
    const std::int64_t left = tokens - first;
    return {sequence * tokens + first, static_cast<int>(left < chunk_rows ? left : chunk_rows)};
  }
};

}  // namespace deltaport::recurrence::cuda
