// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/factors.cuh"
#include "recurrence/cuda/gdn.hpp"
#include "recurrence/cuda/gdn_gradients.cuh"
#include "recurrence/cuda/gdn_prepare.cuh"
#include "recurrence/cuda/gdn_reverse.cuh"
#include "recurrence/cuda/plan.cuh"
#include "recurrence/cuda/scan.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// All parts of the backward workspace.
struct Parts {
  Chunk* table;
  GdnPrepared prepared;
  void *states, *d_states;
  float* partials;
  std::size_t bytes;
};
Parts parts(const GdnBackward& a, const Chunks& chunks, void* base) {
  const Sizes& sizes = a.forward.sizes;
  Workspace workspace(base);
  Parts p;
  const std::int64_t chunk_heads = chunks.slots() * sizes.value_heads, wide = padded(sizes.key_dim) * 128;
  const std::int64_t tiles = (sizes.value_dim + 63) / 64;
  p.table = workspace.take<Chunk>(chunks.cu_seqlens != nullptr ? chunks.slots() : 0);
  Workspace kept(a.forward.prepared);
  p.prepared = GdnPrepared::take(a.forward.prepared != nullptr ? kept : workspace, sizes, chunks, true);
  p.states = workspace.take<char>(chunk_heads * tiles * wide);
  p.d_states = workspace.take<char>(chunk_heads * tiles * wide);
  const bool rates = a.d_a_log != nullptr || a.d_dt_bias != nullptr;
  p.partials = workspace.take<float>(rates ? 2 * chunk_heads : 0);
  if (!rates) p.partials = nullptr;
  p.bytes = workspace.bytes();
  return p;
}

template <class E, int padded_k>
cudaError_t run(const GdnBackward& a, void* base, cudaStream_t stream) {
  const GdnForward& f = a.forward;
  const Sizes& sizes = f.sizes;
  Chunks chunks = make_chunks(sizes);
  const Parts p = parts(a, chunks, base);
  const std::int64_t rows = sizes.batch * sizes.tokens;
  cudaError_t error = launch_plan(chunks, p.table, stream);
  if (error != cudaSuccess) return error;

  TileMaps maps;
  GdnGradientMaps gradient_maps;
  const auto keys = [&](CUtensorMap& map, const void* base) {
    return make_tensor_map(map, f.element, base, rows, sizes.key_heads, sizes.key_dim);
  };
  const auto values = [&](CUtensorMap& map, const void* base) {
    return make_tensor_map(map, f.element, base, rows, sizes.value_heads, sizes.value_dim);
  };
  bool use_maps = keys(maps.q, f.q) && keys(maps.k, f.k) && values(maps.v, f.v);
  use_maps = use_maps && values(gradient_maps.d_o, a.d_o) && keys(gradient_maps.dq, a.dq) &&
             keys(gradient_maps.dk, a.dk);
  gradient_maps.q = maps.q, gradient_maps.k = maps.k, gradient_maps.v = maps.v;

  GdnPrepare prepare;
  prepare.chunks = chunks, prepare.activations = f.activations, prepare.use_maps = use_maps;
  prepare.key_heads = sizes.key_heads, prepare.value_heads = sizes.value_heads;
  prepare.key_dim = sizes.key_dim;
  prepare.q = f.q, prepare.k = f.k, prepare.g = f.g, prepare.beta = f.beta;
  prepare.raw_gate = f.raw_gate, prepare.raw_beta = f.raw_beta;
  prepare.x = p.prepared.x, prepare.r = p.prepared.r, prepare.inverse = p.prepared.inverse;
  prepare.factors = p.prepared.factors, prepare.forgetting = p.prepared.forgetting;
  prepare.resident = resident_prepare_blocks();
  prepare.group = sizes.value_heads / sizes.key_heads, prepare.by_key_heads = Divisor(sizes.key_heads);
  if (f.prepared == nullptr) error = launch_gdn_prepare<E, padded_k>(prepare, maps, stream);
  if (error != cudaSuccess) return error;

  const std::int64_t scans = std::int64_t{(sizes.value_dim + 63) / 64} * sizes.value_heads * sizes.sequences;
  Segments segments = choose_segments(scans, chunks.chunks_per_sequence, processors(), f.activations.l2_norm);
  segments.forgetting = p.prepared.forgetting, segments.heads = sizes.value_heads;
  Scan scan;
  scan.chunks = chunks, scan.use_maps = use_maps;
  scan.key_heads = sizes.key_heads, scan.value_heads = sizes.value_heads;
  scan.key_dim = sizes.key_dim, scan.value_dim = sizes.value_dim;
  scan.k = f.k, scan.v = f.v, scan.x = p.prepared.x, scan.factors = p.prepared.factors;
  scan.segments = segments;
  scan.initial_state = f.initial_state, scan.states = p.states;
  error = launch_gdn_scan<E, padded_k>(scan, maps, first_of(f.prepared), stream);
  if (error != cudaSuccess) return error;

  GdnReverse reverse;
  reverse.chunks = chunks, reverse.use_maps = use_maps;
  reverse.key_heads = sizes.key_heads, reverse.value_heads = sizes.value_heads;
  reverse.key_dim = sizes.key_dim, reverse.value_dim = sizes.value_dim;
  reverse.q = f.q, reverse.k = f.k, reverse.d_o = a.d_o, reverse.x = p.prepared.x, reverse.r = p.prepared.r;
  reverse.factors = p.prepared.factors, reverse.d_final_state = a.d_final_state;
  reverse.segments = segments;
  reverse.d_states = p.d_states, reverse.d_initial_state = a.d_initial_state;
  TileMaps reverse_maps = maps;
  reverse_maps.v = gradient_maps.d_o;
  error = launch_gdn_reverse<E, padded_k>(reverse, reverse_maps, stream);
  if (error != cudaSuccess) return error;

  GdnGradients gradients;
  gradients.chunks = chunks, gradients.activations = f.activations, gradients.use_maps = use_maps;
  gradients.key_heads = sizes.key_heads, gradients.value_heads = sizes.value_heads;
  gradients.key_dim = sizes.key_dim, gradients.value_dim = sizes.value_dim;
  gradients.q = f.q, gradients.k = f.k, gradients.v = f.v, gradients.d_o = a.d_o;
  gradients.raw_gate = f.raw_gate, gradients.raw_beta = f.raw_beta;
  gradients.states = p.states, gradients.d_states = p.d_states, gradients.inverse = p.prepared.inverse;
  gradients.x = p.prepared.x, gradients.r = p.prepared.r;
  gradients.factors = p.prepared.factors, gradients.partials = p.partials;
  gradients.dq = a.dq, gradients.dk = a.dk, gradients.dv = a.dv;
  gradients.dg = a.dg, gradients.dbeta = a.dbeta;
  gradients.d_raw_gate = a.d_raw_gate, gradients.d_raw_beta = a.d_raw_beta;
  error = launch_gdn_gradients<E, padded_k>(gradients, gradient_maps, stream);
  if (error != cudaSuccess) return error;

  if (p.partials != nullptr) {
    error = launch_sum_partials(chunks, p.partials, sizes.value_heads, a.d_a_log, a.d_dt_bias, stream);
    if (error != cudaSuccess) return error;
  }
  const auto zero = [&](void* to, std::int64_t row_bytes) {
    if (error == cudaSuccess) error = launch_zero_uncovered(chunks, to, row_bytes, stream);
  };
  zero(a.dq, std::int64_t{2} * sizes.key_heads * sizes.key_dim);
  zero(a.dk, std::int64_t{2} * sizes.key_heads * sizes.key_dim);
  zero(a.dv, std::int64_t{2} * sizes.value_heads * sizes.value_dim);
  zero(a.dg, std::int64_t{4} * sizes.value_heads);
  zero(a.dbeta, std::int64_t{4} * sizes.value_heads);
  zero(a.d_raw_gate, std::int64_t{2} * sizes.value_heads);
  zero(a.d_raw_beta, std::int64_t{2} * sizes.value_heads);
  return error;
}

}  // namespace

std::size_t workspace_bytes(const GdnBackward& a) {
  return parts(a, make_chunks(a.forward.sizes), nullptr).bytes;
}

cudaError_t backward(const GdnBackward& a, void* workspace, cudaStream_t stream) {
  return for_type_and_width(a.forward.element, a.forward.sizes.key_dim,
                            [&]<class E, int padded_k>() { return run<E, padded_k>(a, workspace, stream); });
}

}  // namespace deltaport::recurrence::cuda
