// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

/// What the CUDA kernels take: raw pointers and a stream, no Kokkos, so that plain nvcc builds them. Shapes and
/// letters are those of deltaport/recurrence/recurrence.hpp. All pointers are device pointers.
namespace deltaport::recurrence::cuda {

enum class Element { bfloat16, float16 };
enum class Gate { log_decay, softplus, lower_bounded };
enum class Beta { plain, sigmoid, doubled_sigmoid };

struct Sizes {
  std::int64_t batch = 1, tokens = 0;  ///< B, T
  int sequences = 1;                   ///< N; equals B without cu_seqlens
  int key_heads = 1, value_heads = 1;  ///< H, HV
  int key_dim = 128, value_dim = 128;  ///< K, V
  const std::int32_t* cu_seqlens = nullptr;
};

struct Activations {
  float scale = 1.0f;
  bool l2_norm = false;  ///< of q and k, eps 1e-6 inside the root
  Gate gate = Gate::log_decay;
  float gate_lower_bound = -5.0f;
  Beta beta = Beta::plain;
  bool write_sigmoid = false;      ///< GDN2's w
  const float* a_log = nullptr;    ///< [HV]; GDN2: [gate heads]
  const float* dt_bias = nullptr;  ///< [HV] or null; GDN2: [gate heads, K]

  /// Gates and beta, or b, are taken as they are given.
  bool plain_gates() const { return gate == Gate::log_decay && beta == Beta::plain; }
};

/// q, k [B, T, H, K]; v, o [B, T, HV, V] of the element type; g, beta float, or their pre-activations.
struct GdnForward {
  Sizes sizes;
  Activations activations;
  Element element = Element::bfloat16;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const float *g = nullptr, *beta = nullptr;            ///< [B, T, HV]
  const void *raw_gate = nullptr, *raw_beta = nullptr;  ///< [B, T, HV] of the element type
  const float* initial_state = nullptr;                 ///< [N, HV, K, V] or null
  void* o = nullptr;
  float* final_state = nullptr;  ///< [N, HV, K, V] or null
  /// What the preparation makes of the inputs, prepared_bytes() of it, 16-byte aligned: forward leaves it there, backward
  /// reads it instead of making it again. Null: in the workspace, and backward makes it again.
  void* prepared = nullptr;
};

/// Backward of the same call. Gradients of g and beta come as float, those of pre-activations in the element type.
struct GdnBackward {
  GdnForward forward;                    ///< o and final_state are not read
  const void* d_o = nullptr;             ///< [B, T, HV, V]
  const float* d_final_state = nullptr;  ///< [N, HV, K, V] or null
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float *dg = nullptr, *dbeta = nullptr;              ///< [B, T, HV], where g and beta were given
  void *d_raw_gate = nullptr, *d_raw_beta = nullptr;  ///< [B, T, HV], where pre-activations were given
  float *d_a_log = nullptr, *d_dt_bias = nullptr;     ///< [HV] or null
  float* d_initial_state = nullptr;                   ///< or null
};

}  // namespace deltaport::recurrence::cuda
