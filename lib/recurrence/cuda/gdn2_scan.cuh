// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2.hpp"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/plan.cuh"

/// The serial part of GDN2's forward pass. With the state S^T (V x K) in registers, 64 value columns a block:
///   Y^T = w^T o v^T - S^T K~^T      S^T <- columns times gamma + Y^T X      o^T = S^T Q~^T + Y^T R^T
namespace deltaport::recurrence::cuda {

struct Gdn2ScanMaps {
  CUtensorMap v, w, o;
};

struct Gdn2Scan {
  Chunks chunks;
  bool use_maps = false;       ///< the maps are valid
  bool write_sigmoid = false;  ///< w holds pre-activations
  Segments segments;
  int gate_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  const void *v = nullptr, *w = nullptr;                                      ///< as given
  const void *erase = nullptr, *query = nullptr, *x = nullptr, *r = nullptr;  ///< images, see Gdn2Prepare
  const float* gamma = nullptr;
  const float* initial_state = nullptr;  ///< [N, HV, K, V] or null
  void* o = nullptr;                     ///< [rows, HV, V]; null: states only, without query and r
  float* final_state = nullptr;          ///< or null
  void* states = nullptr;                ///< [slots, HV, V tiles] images 64 (V) x K of S^T before each chunk
};

/// How to cut the scans of a call.
inline Segments gdn2_segments(const Gdn2Forward& a, const Chunks& chunks, const float* forgetting) {
  const std::int64_t scans =
      std::int64_t{(a.sizes.value_dim + 63) / 64} * a.sizes.value_heads * a.sizes.sequences;
  Segments segments = choose_segments(scans, chunks.chunks_per_sequence, processors(), true);
  segments.forgetting = forgetting, segments.heads = a.gate_heads;
  return segments;
}

/// Block = 512 threads (256 for states only; 384 where shared memory is small), one sequence, value head and 64 value
/// columns.
/// `start`: after what comes before in the stream, or beside the preparation; see first_of.
template <class E, int padded_k>
cudaError_t launch_gdn2_scan(const Gdn2Scan& arguments, const Gdn2ScanMaps& maps, Start start,
                             cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
