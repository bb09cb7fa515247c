// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/arguments.hpp"
#include "recurrence/cuda/chunks.cuh"
#include "recurrence/cuda/tensor_map.hpp"

/// The part of the backward pass that is parallel over chunks. From the states before each chunk (S), the gradients of
/// the states after it (dS') and dO, every gradient of the chunk's rows. Notation of gdn_prepare.cuh. With the rounding of
/// the reverse scan, dY = R^T dO + X dS'.
namespace deltaport::recurrence::cuda {

struct GdnGradientMaps {
  CUtensorMap q, k, v, d_o, dq, dk;
};

struct GdnGradients {
  Chunks chunks;
  Activations activations;
  bool use_maps = false;
  int key_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  const void *q = nullptr, *k = nullptr, *v = nullptr, *d_o = nullptr;
  const void *raw_gate = nullptr, *raw_beta = nullptr;
  const void *states = nullptr, *d_states = nullptr;  ///< [slots, HV, V tiles] images
  const void* inverse = nullptr;                      ///< [slots, HV, 2] images of A, high and low part
  const void *x = nullptr, *r = nullptr;              ///< [slots, HV] images of X and R
  const float* factors = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float *dg = nullptr, *dbeta = nullptr;              ///< [rows, HV], or null where the next are given
  void *d_raw_gate = nullptr, *d_raw_beta = nullptr;  ///< [rows, HV]
  float* partials = nullptr;                          ///< [slots, HV, 2]: of dA_log, ddt_bias; or null
};

/// Block = 512 threads, one chunk and key head; heads run fastest, then chunks in time.
template <class E, int padded_k>
cudaError_t launch_gdn_gradients(const GdnGradients& arguments, const GdnGradientMaps& maps,
                                 cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
