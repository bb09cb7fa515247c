// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"

namespace deltaport::recurrence::cuda {

/// q, k [B, T, H, K]; b [B, T, gate heads, K]; v, w, o [B, T, HV, V] of the element type. The gates on the key axis
/// have H heads, shared by the value heads of a group, or HV. b and w are pre-activations when
/// activations.beta != plain and activations.write_sigmoid.
struct Gdn2Forward {
  Sizes sizes;
  int gate_heads = 1;  ///< H or HV
  Activations activations;
  Element element = Element::bfloat16;
  const void *q = nullptr, *k = nullptr, *v = nullptr, *b = nullptr, *w = nullptr;
  const float* g = nullptr;              ///< [B, T, gate heads, K], for Gate::log_decay
  const void* raw_gate = nullptr;        ///< [B, T, gate heads, K] of the element type, else
  const float* initial_state = nullptr;  ///< [N, HV, K, V] or null
  void* o = nullptr;
  float* final_state = nullptr;  ///< [N, HV, K, V] or null
  void* prepared = nullptr;      ///< as GdnForward's
};

/// Backward of the same call. db and dw are gradients of b and w as given, of the element type.
struct Gdn2Backward {
  Gdn2Forward forward;                   ///< o and final_state are not read
  const void* d_o = nullptr;             ///< [B, T, HV, V]
  const float* d_final_state = nullptr;  ///< [N, HV, K, V] or null
  void *dq = nullptr, *dk = nullptr, *dv = nullptr, *db = nullptr, *dw = nullptr;
  float* dg = nullptr;         ///< [B, T, gate heads, K], where g was given
  void* d_raw_gate = nullptr;  ///< [B, T, gate heads, K], where the pre-activation was given
  float *d_a_log = nullptr, *d_dt_bias = nullptr;  ///< [gate heads], [gate heads, K], or null
  float* d_initial_state = nullptr;                ///< [N, HV, K, V] or null
};

/// Bytes that `prepared` of such a call holds.
std::size_t prepared_bytes(const Gdn2Forward& arguments);
/// Bytes of scratch that forward needs; 1,024-byte aligned.
std::size_t workspace_bytes(const Gdn2Forward& arguments);
/// Enqueues the forward pass on `stream`. K up to 128 and V are multiples of 8.
cudaError_t forward(const Gdn2Forward& arguments, void* workspace, cudaStream_t stream);

/// The same of the backward pass, which runs the preparation again unless it is given what forward left of it.
std::size_t workspace_bytes(const Gdn2Backward& arguments);
cudaError_t backward(const Gdn2Backward& arguments, void* workspace, cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
