// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn.hpp"
#include "recurrence/cuda/gdn_prepare.cuh"
#include "recurrence/cuda/plan.cuh"
#include "recurrence/cuda/scan.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// All parts of the forward workspace.
struct Parts {
  Chunk* table;
  GdnPrepared prepared;
  std::size_t bytes;
};

Parts parts(const GdnForward& a, const Chunks& chunks, void* base) {
  Workspace workspace(base);
  Parts p;
  p.table = workspace.take<Chunk>(chunks.cu_seqlens != nullptr ? chunks.slots() : 0);
  Workspace kept(a.prepared);
  const bool keeps = a.prepared != nullptr;
  p.prepared = GdnPrepared::take(keeps ? kept : workspace, a.sizes, chunks, keeps);
  p.bytes = workspace.bytes();
  return p;
}

template <class E, int padded_k>
cudaError_t run(const GdnForward& a, void* base, cudaStream_t stream) {
  Chunks chunks = make_chunks(a.sizes);
  const auto [table, p, bytes] = parts(a, chunks, base);
  if (cudaError_t e = launch_plan(chunks, table, stream); e != cudaSuccess) return e;
  const std::int64_t rows = a.sizes.batch * a.sizes.tokens;
  TileMaps maps;
  const bool use_maps =
      make_tensor_map(maps.q, a.element, a.q, rows, a.sizes.key_heads, a.sizes.key_dim) &&
      make_tensor_map(maps.k, a.element, a.k, rows, a.sizes.key_heads, a.sizes.key_dim) &&
      make_tensor_map(maps.v, a.element, a.v, rows, a.sizes.value_heads, a.sizes.value_dim) &&
      make_tensor_map(maps.o, a.element, a.o, rows, a.sizes.value_heads, a.sizes.value_dim);
  GdnPrepare prepare;
  prepare.chunks = chunks, prepare.activations = a.activations, prepare.use_maps = use_maps;
  prepare.key_heads = a.sizes.key_heads, prepare.value_heads = a.sizes.value_heads;
  prepare.key_dim = a.sizes.key_dim;
  prepare.q = a.q, prepare.k = a.k, prepare.g = a.g, prepare.beta = a.beta;
  prepare.raw_gate = a.raw_gate, prepare.raw_beta = a.raw_beta;
  prepare.x = p.x, prepare.r = p.r, prepare.inverse = p.inverse;
  prepare.factors = p.factors, prepare.forgetting = p.forgetting;
  prepare.resident = resident_prepare_blocks();
  prepare.group = a.sizes.value_heads / a.sizes.key_heads, prepare.by_key_heads = Divisor(a.sizes.key_heads);
  if (cudaError_t e = launch_gdn_prepare<E, padded_k>(prepare, maps, stream); e != cudaSuccess) return e;
  const std::int64_t scans =
      std::int64_t{(a.sizes.value_dim + 63) / 64} * a.sizes.value_heads * a.sizes.sequences;
  Segments segments = choose_segments(scans, chunks.chunks_per_sequence, processors(), a.activations.l2_norm);
  segments.forgetting = p.forgetting, segments.heads = a.sizes.value_heads;
  Scan scan;
  scan.chunks = chunks;
  scan.use_maps = use_maps;
  scan.key_heads = a.sizes.key_heads, scan.value_heads = a.sizes.value_heads;
  scan.key_dim = a.sizes.key_dim, scan.value_dim = a.sizes.value_dim;
  scan.q = a.q, scan.k = a.k, scan.v = a.v, scan.x = p.x, scan.r = p.r, scan.factors = p.factors;
  scan.segments = segments;
  scan.initial_state = a.initial_state, scan.o = a.o, scan.final_state = a.final_state;
  if (cudaError_t e = launch_gdn_scan<E, padded_k>(scan, maps, Start::beside_previous, stream);
      e != cudaSuccess)
    return e;
  return launch_zero_uncovered(chunks, a.o, std::int64_t{2} * a.sizes.value_heads * a.sizes.value_dim,
                               stream);
}

}  // namespace

std::size_t prepared_bytes(const GdnForward& a) {
  Workspace memory(nullptr);
  GdnPrepared::take(memory, a.sizes, make_chunks(a.sizes), true);
  return memory.bytes();
}

std::size_t workspace_bytes(const GdnForward& a) {
  return parts(a, make_chunks(a.sizes), nullptr).bytes;
}

cudaError_t forward(const GdnForward& a, void* workspace, cudaStream_t stream) {
  return for_type_and_width(a.element, a.sizes.key_dim,
                            [&]<class E, int padded_k>() { return run<E, padded_k>(a, workspace, stream); });
}

}  // namespace deltaport::recurrence::cuda
