// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/tile.cuh"

/// The state of one head, transposed, as accumulator of four warps: 64 value columns by K, float32; warp w holds
/// value columns 16 w to 16 w + 15. In memory it is [K, V].
namespace deltaport::recurrence::cuda {

/// Register j of this lane is state (key, value) with value counted from the tile's first column.
__device__ __forceinline__ int state_key(int j) {
  return 8 * (j / 4) + 2 * (threadIdx.x % 4) + j % 2;
}
__device__ __forceinline__ int state_value(int j) {
  return 16 * (threadIdx.x / 32) + (threadIdx.x % 32) / 4 + 8 * ((j / 2) % 2);
}

/// Zero when `from` is null, and outside K x V.
template <int n>
__device__ __forceinline__ void read_state(float (&state)[n], const float* from, int key_dim, int value_dim,
                                           int tile) {
#pragma unroll
  for (int j = 0; j < n; ++j) {
    const int key = state_key(j), value = tile + state_value(j);
    state[j] = from != nullptr && key < key_dim && value < value_dim
                   ? from[std::int64_t{key} * value_dim + value]
                   : 0.0f;
  }
}
template <int n>
__device__ __forceinline__ void write_state(const float (&state)[n], float* to, int key_dim, int value_dim,
                                            int tile) {
#pragma unroll
  for (int j = 0; j < n; ++j) {
    const int key = state_key(j), value = tile + state_value(j);
    if (key < key_dim && value < value_dim) to[std::int64_t{key} * value_dim + value] = state[j];
  }
}
/// The rounded state as a tile of 64 value rows x K.
template <int steps>
__device__ __forceinline__ void store_state_tile(std::uint32_t tile,
                                                 const std::uint32_t (&operand)[steps][4]) {
#pragma unroll
  for (int s = 0; s < steps; ++s) store_a(tile, 16 * (threadIdx.x / 32), 16 * s, operand[s]);
}

}  // namespace deltaport::recurrence::cuda
