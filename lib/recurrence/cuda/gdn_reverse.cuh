// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/movement.cuh"

/// The serial part of the backward pass, from the last chunk to the first. With dS^T (V x K), the gradient of the state
/// after a chunk, in registers, 64 value columns a block:
///   dY^T = dS^T X^T + dO^T R      dS^T <- gamma dS^T + (scale e o dO)^T Q - (beta e o dY)^T K
namespace deltaport::recurrence::cuda {

struct GdnReverse {
  Chunks chunks;
  Segments segments;
  bool use_maps = false;  ///< the maps are valid: q, k, v = d_o
  int key_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  const void *q = nullptr, *k = nullptr, *d_o = nullptr;
  const void *x = nullptr, *r = nullptr;  ///< images from the preparation
  const float* factors = nullptr;         ///< see Factor
  const float* d_final_state = nullptr;   ///< [N, HV, K, V] or null
  void* d_states = nullptr;               ///< [slots, HV, V tiles] images 64 (V) x K: dS^T after each chunk
  float* d_initial_state = nullptr;       ///< [N, HV, K, V] or null
};

/// Block = 256 threads, one sequence, value head and 64 value columns.
template <class E, int padded_k>
cudaError_t launch_gdn_reverse(const GdnReverse& arguments, const TileMaps& maps, cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
