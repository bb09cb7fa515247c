// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_gradients.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// One block per gate head and 32 channels (or the rate, the last block); warps take every eighth slot, then a fixed order.
__global__ void sum_partials(const Gdn2Channels a, float* d_a_log, float* d_dt_bias) {
  __shared__ float sums[8][32];
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int key_dim = a.input.key_dim, channel = 32 * blockIdx.y + lane;
  const bool rate = blockIdx.y + 1 == gridDim.y;
  if ((rate ? d_a_log : d_dt_bias) == nullptr) return;
  float sum = 0.0f;
  const std::int64_t slots = a.input.chunks.slots();
  if (rate) {
    const int blocks = gdn2_channel_blocks(key_dim);
    for (std::int64_t slot = threadIdx.x; slot < slots; slot += 256) {
      if (a.input.chunks.at(slot).rows == 0) continue;
      const float* const from = a.rate_partials + (slot * a.input.gate_heads + head) * blocks;
      for (int block = 0; block < blocks; ++block) sum += from[block];
    }
  } else if (channel < key_dim) {
    for (std::int64_t slot = warp; slot < slots; slot += 8) {
      if (a.input.chunks.at(slot).rows > 0)
        sum += a.bias_partials[(slot * a.input.gate_heads + head) * key_dim + channel];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0) return;
  for (int w = 1; w < 8; ++w) sum += sums[w][lane];
  if (rate) {
    sum = sum_warp(sum);
    if (lane == 0) d_a_log[head] = sum;
  } else if (channel < key_dim) {
    d_dt_bias[head * key_dim + channel] = sum;
  }
}

}  // namespace

cudaError_t launch_gdn2_sum_partials(const Gdn2Channels& a, float* d_a_log, float* d_dt_bias,
                                     cudaStream_t stream) {
  const dim3 grid(a.input.gate_heads, (a.input.key_dim + 31) / 32 + 1);
  sum_partials<<<grid, 256, 0, stream>>>(a, d_a_log, d_dt_bias);
  return cudaGetLastError();
}

}  // namespace deltaport::recurrence::cuda
