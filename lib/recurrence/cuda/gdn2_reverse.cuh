// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/movement.cuh"

/// The serial part of GDN2's backward pass, from the last chunk to the first. With dS^T (V x K), the gradient of the
/// state after a chunk, in registers, 64 value columns a block:
///   dY^T = dS^T X^T + dO^T R      dS^T <- columns times gamma + dO^T Q~ - dY^T K~
namespace deltaport::recurrence::cuda {

struct Gdn2ReverseMaps {
  CUtensorMap d_o;
};

struct Gdn2Reverse {
  Chunks chunks;
  bool use_maps = false;  ///< the maps are valid
  Segments segments;
  int gate_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  const void* d_o = nullptr;                                                  ///< [rows, HV, V]
  const void *erase = nullptr, *query = nullptr, *x = nullptr, *r = nullptr;  ///< images, see Gdn2Prepare
  const float* gamma = nullptr;
  const float* d_final_state = nullptr;  ///< [N, HV, K, V] or null
  void* d_states = nullptr;              ///< [slots, HV, V tiles] images 64 (V) x K: dS^T after each chunk
  float* d_initial_state = nullptr;      ///< [N, HV, K, V] or null
};

/// Block = 256 threads, one sequence, value head and 64 value columns.
template <class E, int padded_k>
cudaError_t launch_gdn2_reverse(const Gdn2Reverse& arguments, const Gdn2ReverseMaps& maps,
                                cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
