// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_prepare.cuh"

/// The part of GDN2's backward pass that is parallel over chunks. From the states before each chunk (S), the gradients
/// of the states after it (dS') and dO, every gradient of the chunk's rows, in two kernels. Notation of
/// gdn2_prepare.cuh; S is K x V.
///
/// The first works on rows and values, and leaves what does not depend on single channels' decays:
///   Y = w o V - K~ S;  dY = R^T dO + X dS';  dV = dY o w;  dw = dY o V
///   dQ~ = dO S^T;  dK~ = -dY S^T;  dX = Y dS'^T;  dK^ = A dX;  dR = tril(dO Y^T)
///   dP = scale tril(dR A^T);  dL = -stril((R^T dR + X dX^T) A^T)
/// summed over the value heads that share the gates. The last line is -stril(A^T dA A^T) with dA = P^T scale dR +
/// K^ dX^T: A^T P^T and A^T K^ are R and X, and nothing above the diagonal of dA counts.
///
/// The second works on channels, by the levels of gdn2_levels.cuh (D: the decay between two rows):
///   u_i = sum_j dP_ij k_j D_ij;  t_i = sum_j dL_ij k_j D_ij;  m_j = sum_i (dP_ij q_i + dL_ij b_i k_i) D_ij
///   dq = scale 2^G dQ~ + u;  d(bk) = 2^G dK~ + t;  m' = 2^(G_last - G) dK^
///   db = d(bk) k;  dk = d(bk) b + m + m'
///   dg_i = sum over i' >= i of (q dq + b k d(bk) - k (m + m'))_i' + sum over all rows of k m' + gamma sum_v S dS'
namespace deltaport::recurrence::cuda {

/// What goes from the first kernel to the second. [slots, gate heads] of each.
struct Gdn2Between {
  void *d_query = nullptr, *d_erase = nullptr, *d_restored = nullptr;  ///< scale dQ~, dK~, dK^: fragments
  void* scores =
      nullptr;  ///< [2 panels]: dP and dL of rows of length 1, in binary16, times 2^e; see score_block
  float* undo =
      nullptr;  ///< [4]: 2^-e and nothing, for copies go by 16 bytes: the largest of these numbers is brought near 2^13
  float* d_gamma = nullptr;  ///< [padded K]: sum over v of S dS'
};
/// Fragments: of 16 rows and 16 columns, as load_a gives them, 16 bytes a lane: [row / 16][column / 16][lane].

/// dP and dL (which = 0, 1) as blocks of 16 x 16 on and below the diagonal, of four matrices of 8 x 8, whose rows are 16
/// bytes: [column / 8][row / 8][row % 8][column % 8]. Free of bank conflicts, by rows and by columns.
constexpr unsigned score_block_bytes = 512, score_bytes = 10 * score_block_bytes;
__host__ __device__ constexpr unsigned score_block(unsigned which, unsigned row, unsigned column) {
  return which * score_bytes + (row * (row + 1) / 2 + column) * score_block_bytes;
}

struct Gdn2GradientMaps {
  CUtensorMap v, w, d_o;
};

/// Arguments of the first kernel.
struct Gdn2Gradients {
  Chunks chunks;
  bool use_maps = false;       ///< the maps are valid
  bool write_sigmoid = false;  ///< w holds pre-activations
  bool l2_norm = false;
  float scale = 1.0f;
  int gate_heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  const void *v = nullptr, *w = nullptr, *d_o = nullptr;  ///< [rows, HV, V]
  const void *states = nullptr, *d_states = nullptr;      ///< [slots, HV, V tiles] images
  const void *erase = nullptr, *x = nullptr, *r = nullptr, *inverse = nullptr;  ///< images, see Gdn2Prepare
  const float* norms = nullptr;
  void *dv = nullptr, *dw = nullptr;  ///< [rows, HV, V]
  Gdn2Between between;
};

/// Block = 384 threads, one chunk and gate head; heads run fastest, then chunks in time.
template <class E, int padded_k>
cudaError_t launch_gdn2_gradients(const Gdn2Gradients& arguments, const Gdn2GradientMaps& maps,
                                  cudaStream_t stream);

/// Arguments of the second kernel.
struct Gdn2Channels {
  Gdn2Prepare input;  ///< what the preparation reads, and norms
  Gdn2Between between;
  float* sums = nullptr;  ///< [slots, H, 2, 64, padded K]: dq and dk so far; with gate heads > H only
  void *dq = nullptr, *dk = nullptr;  ///< [rows, H, K]
  void* db = nullptr;                 ///< [rows, gate heads, K]
  float* dg = nullptr;                ///< [rows, gate heads, K], or
  void* d_raw_gate = nullptr;         ///< the same of the pre-activation
  float* rate_partials = nullptr;     ///< [slots, gate heads, gdn2_channel_blocks], or null
  float* bias_partials = nullptr;     ///< [slots, gate heads, K], or null
};
/// Blocks that share the channels of a chunk and gate head.
__host__ __device__ constexpr int gdn2_channel_blocks(int key_dim) {
  return key_dim <= 64 ? 1 : 2;
}

/// Block = 256 threads, 64 channels of one chunk and key head; the blocks of a chunk and head are a cluster.
template <class E, int padded_k>
cudaError_t launch_gdn2_channels(const Gdn2Channels& arguments, const Gdn2PrepareMaps& maps,
                                 cudaStream_t stream);

/// d_a_log [gate heads] and d_dt_bias [gate heads, K] (either may be null) from the partial sums, in a fixed order.
cudaError_t launch_gdn2_sum_partials(const Gdn2Channels& arguments, float* d_a_log, float* d_dt_bias,
                                     cudaStream_t stream);

}  // namespace deltaport::recurrence::cuda
