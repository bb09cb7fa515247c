// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/movement.cuh"
#include "recurrence/cuda/plan.cuh"

/// Everything of a chunk that does not depend on the state. G is the inclusive sum of log2 decays in the chunk, per
/// channel, and all products over channels carry the decay between their two rows:
///   K~ = b o k o 2^G;  Q~ = scale q o 2^G;  K^ = k o 2^(G_last - G);  gamma = 2^G_last
///   A = (I + stril(sum_d (b k)_id k_jd 2^(G_id - G_jd)))^-1;  P = tril(sum_d q_id k_jd 2^(G_id - G_jd))
///   X = A^T K^;  R = scale P A
/// with q and k normalised first if asked for. Rows that have no token give zeros.
namespace deltaport::recurrence::cuda {

struct Gdn2PrepareMaps {
  CUtensorMap q, k, b;
};

struct Gdn2Prepare {
  Chunks chunks;
  Activations activations;
  int key_heads = 1, gate_heads = 1, key_dim = 128;
  const void *q = nullptr, *k = nullptr, *b = nullptr;
  const float* g = nullptr;
  const void* raw_gate = nullptr;
  void* erase = nullptr;    ///< K~: [slots, gate heads] images of 64 x padded K
  void* query = nullptr;    ///< Q~: likewise
  void* x = nullptr;        ///< X: likewise
  void* r = nullptr;        ///< R: [slots, gate heads] images of 64 x 64
  float* gamma = nullptr;   ///< [slots, gate heads, padded K]
  void* inverse = nullptr;  ///< [slots, gate heads, 2] images of 64 x 64 (A, high and low part), or null
  Segments segments;
  /// [slots, gate heads]: log2 of a bound of the norm of diag(gamma) - X^T K~, what the chunk leaves of the state before
  /// it: max gamma + sum_i |X_i| |K~_i|. For chunks that decide on segments.
  float* forgetting = nullptr;
  float* norms = nullptr;  ///< [slots, gate heads, 2, 64]: 1 / |q|, 1 / |k|, with or without l2 norm; or null
  bool use_maps = false;   ///< the maps are valid
};

/// What the preparation leaves: the results of Gdn2Prepare.
struct Gdn2Prepared {
  void *erase, *query, *x, *r, *inverse;
  float *gamma, *forgetting, *norms;

  /// Takes it from `memory`; `inverse` and `norms`, which only backward reads, are null unless asked for.
  static Gdn2Prepared take(Workspace& memory, const Sizes& sizes, int gate_heads, const Chunks& chunks,
                           bool for_backward) {
    const std::int64_t images = chunks.slots() * gate_heads, padded_k = padded(sizes.key_dim),
                       wide = padded_k * 128;
    Gdn2Prepared p;
    p.erase = memory.take<char>(images * wide);
    p.query = memory.take<char>(images * wide);
    p.x = memory.take<char>(images * wide);
    p.r = memory.take<char>(images * panel_bytes);
    p.inverse = for_backward ? memory.take<char>(images * 2 * panel_bytes) : nullptr;
    p.gamma = memory.take<float>(images * padded_k);
    p.forgetting = memory.take<float>(images);
    p.norms = for_backward ? memory.take<float>(images * 2 * chunk_rows) : nullptr;
    return p;
  }
};

/// Block = 2 padded_k threads, one chunk and gate head; heads run fastest, then chunks from the last to the first.
template <class E, int padded_k>
cudaError_t launch_gdn2_prepare(const Gdn2Prepare& arguments, const Gdn2PrepareMaps& maps,
                                cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
