// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "recurrence/cuda/tile.cuh"

/// Where chunks lie. Every sequence is cut into chunks of 64 tokens from its own start; chunk c of sequence s has
/// slot first_slot(s) + c in all per-chunk arrays.
namespace deltaport::recurrence::cuda {

struct Chunk {
  std::int64_t row;  ///< first row in the token axis of B * T rows
  int rows;          ///< 1 to 64; 0 for a slot without a chunk
};

struct Chunks {
  std::int64_t tokens = 0;                   ///< T
  int sequences = 0;                         ///< N
  int chunks_per_sequence = 0;               ///< without cu_seqlens
  const std::int32_t* cu_seqlens = nullptr;  ///< [N + 1] or null
  const Chunk* table = nullptr;              ///< [slots], with cu_seqlens only

  __host__ __device__ std::int64_t slots() const {
    return cu_seqlens == nullptr ? std::int64_t{sequences} * chunks_per_sequence
                                 : tokens / chunk_rows + sequences + 1;
  }
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
    const auto count = static_cast<std::uint32_t>(sequences), own = i / count, sequence = i - own * count;
    const std::uint32_t chunk = backwards ? chunks_per_sequence - 1 - own : own;
    return std::int64_t{sequence} * chunks_per_sequence + chunk;
  }
  __device__ Chunk at(std::int64_t slot) const {
    if (cu_seqlens != nullptr) return table[slot];
    const std::int64_t sequence = slot / chunks_per_sequence;
    const std::int64_t first = (slot - sequence * chunks_per_sequence) * chunk_rows;
    const std::int64_t left = tokens - first;
    return {sequence * tokens + first, static_cast<int>(left < chunk_rows ? left : chunk_rows)};
  }
};

}  // namespace deltaport::recurrence::cuda
