// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/chunks.cuh"
#include "recurrence/cuda/factors.cuh"
#include "recurrence/cuda/plan.cuh"
#include "recurrence/cuda/tensor_map.hpp"

/// Everything of a chunk that does not depend on the state: with A = (I + diag(beta) stril(K K^T))^-1 (no gate
/// inside), P = tril(Q K^T), e_i = 2^G_i, D_ij = 2^(G_i - G_j),
///   X = c o rows(A^T K), c_i = 2^(G_last - G_i);  R = scale D o (P A).
/// The norms of q and k enter as row factors on float32 values; A is used as the sum of two rounded parts.
namespace deltaport::recurrence::cuda {

struct GdnPrepare {
  Chunks chunks;
  Activations activations;
  int key_heads = 1, value_heads = 1, key_dim = 128;
  int group = 1;         ///< value heads of a key head
  Divisor by_key_heads;  ///< H
  const void *q = nullptr, *k = nullptr;
  const float *g = nullptr, *beta = nullptr;
  const void *raw_gate = nullptr, *raw_beta = nullptr;
  void* x = nullptr;            ///< [slots, HV] images of 64 x K
  void* r = nullptr;            ///< [slots, HV] images of 64 x 64
  void* inverse = nullptr;      ///< [slots, HV, 2] images of 64 x 64 (A, high and low part), or null
  float* factors = nullptr;     ///< [slots, HV, factor_rows, 64]
  float* forgetting = nullptr;  ///< [slots, HV], see find_place
  int resident = 528;           ///< blocks that run at once, for prefetching
  bool use_maps = false;        ///< the maps are valid
};

/// Blocks of the preparation that the current device runs at once.
inline int resident_prepare_blocks() {
  return 4 * processors();
}

/// What the preparation leaves: the results of GdnPrepare.
struct GdnPrepared {
  void *x, *r, *inverse;
  float *factors, *forgetting;

  /// Takes it from `memory`; `inverse`, which only backward reads, is null unless asked for.
  static GdnPrepared take(Workspace& memory, const Sizes& sizes, const Chunks& chunks, bool with_inverse) {
    const std::int64_t chunk_heads = chunks.slots() * sizes.value_heads;
    GdnPrepared p;
    p.x = memory.take<char>(chunk_heads * padded(sizes.key_dim) * 128);
    p.r = memory.take<char>(chunk_heads * panel_bytes);
    p.inverse = with_inverse ? memory.take<char>(chunk_heads * 2 * panel_bytes) : nullptr;
    p.factors = memory.take<float>(chunk_heads * factor_rows * 64);
    p.forgetting = memory.take<float>(chunk_heads);
    return p;
  }
};

/// Block = 128 threads, one chunk and key head; heads run fastest, then chunks from the last to the first.
template <class E, int padded_k>
cudaError_t launch_gdn_prepare(const GdnPrepare& arguments, const TileMaps& maps, cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
