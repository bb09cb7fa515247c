// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"

/// The serial part of the forward pass. With the state S^T (V x K) in registers, 64 value columns a block:
///   Y^T = beta o v^T - (beta e) o S^T K^T      S^T <- gamma S^T + Y^T X      o^T = (scale e) o S^T Q^T + Y^T R^T
/// GDN2: Y^T = w o v^T - S^T K~^T, S^T columns times 2^G_last, o^T = S^T Q~^T + Y^T R^T, with K~ and Q~ (scaled)
/// in place of K and Q.
namespace deltaport::recurrence::cuda {

struct Scan {
  Chunks chunks;
  bool use_maps = false;  ///< the maps are valid
  Segments segments;
  int key_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  const void *q = nullptr, *k = nullptr;  ///< GDN: as given
  const void* v = nullptr;
  const void *x = nullptr, *r = nullptr;  ///< images from the preparation
  const float* factors = nullptr;         ///< GDN, see Factor
  const float* initial_state = nullptr;   ///< [N, HV, K, V] or null
  void* o = nullptr;                      ///< [rows, HV, V]; null: states only
  float* final_state = nullptr;           ///< or null
  void* states = nullptr;                 ///< [slots, HV, V tiles] images 64 (V) x K of S^T before each chunk
};

/// Block = 256 threads, one sequence, value head and 64 value columns; two of a head are a cluster, see Team.
/// `start`: after what comes before in the stream, or beside the preparation; see first_of.
template <class E, int padded_k>
cudaError_t launch_gdn_scan(const Scan& arguments, const TileMaps& maps, Start start, cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
