// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2.hpp"
#include "recurrence/cuda/gdn2_prepare.cuh"
#include "recurrence/cuda/gdn2_scan.cuh"
#include "recurrence/cuda/plan.cuh"
#include "recurrence/cuda/tile.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// All parts of the forward workspace.
struct Parts {
  Chunk* table;
  Gdn2Prepared prepared;
  std::size_t bytes;
};

Parts parts(const Gdn2Forward& a, const Chunks& chunks, void* base) {
  Workspace workspace(base);
  Parts p;
  p.table = workspace.take<Chunk>(chunks.cu_seqlens != nullptr ? chunks.slots() : 0);
  Workspace kept(a.prepared);
  const bool keeps = a.prepared != nullptr;
  p.prepared = Gdn2Prepared::take(keeps ? kept : workspace, a.sizes, a.gate_heads, chunks, keeps);
  p.bytes = workspace.bytes();
  return p;
}

template <class E, int padded_k>
cudaError_t prepare(const Gdn2Forward& a, const Chunks& chunks, const Segments& segments,
                    const Gdn2Prepared& p, cudaStream_t stream) {
  const std::int64_t rows = a.sizes.batch * a.sizes.tokens;
  Gdn2PrepareMaps maps;
  Gdn2Prepare prepare;
  prepare.chunks = chunks;
  prepare.activations = a.activations;
  prepare.key_heads = a.sizes.key_heads, prepare.gate_heads = a.gate_heads, prepare.key_dim = a.sizes.key_dim;
  prepare.q = a.q, prepare.k = a.k, prepare.b = a.b, prepare.g = a.g, prepare.raw_gate = a.raw_gate;
  prepare.erase = p.erase, prepare.query = p.query, prepare.x = p.x, prepare.r = p.r, prepare.gamma = p.gamma;
  prepare.inverse = p.inverse, prepare.norms = p.norms;
  prepare.segments = segments, prepare.forgetting = p.forgetting;
  prepare.use_maps = make_tensor_map(maps.q, a.element, a.q, rows, a.sizes.key_heads, a.sizes.key_dim) &&
                     make_tensor_map(maps.k, a.element, a.k, rows, a.sizes.key_heads, a.sizes.key_dim) &&
                     make_tensor_map(maps.b, a.element, a.b, rows, a.gate_heads, a.sizes.key_dim);
  return launch_gdn2_prepare<E, padded_k>(prepare, maps, stream);
}

template <class E, int padded_k>
cudaError_t scan(const Gdn2Forward& a, const Chunks& chunks, const Segments& segments, const Gdn2Prepared& p,
                 cudaStream_t stream) {
  const std::int64_t rows = a.sizes.batch * a.sizes.tokens;
  Gdn2ScanMaps maps;
  Gdn2Scan scan;
  scan.chunks = chunks, scan.segments = segments;
  scan.write_sigmoid = a.activations.write_sigmoid;
  scan.gate_heads = a.gate_heads, scan.value_heads = a.sizes.value_heads;
  scan.key_dim = a.sizes.key_dim, scan.value_dim = a.sizes.value_dim;
  scan.v = a.v, scan.w = a.w;
  scan.erase = p.erase, scan.query = p.query, scan.x = p.x, scan.r = p.r, scan.gamma = p.gamma;
  scan.initial_state = a.initial_state, scan.o = a.o, scan.final_state = a.final_state;
  scan.use_maps = make_tensor_map(maps.v, a.element, a.v, rows, a.sizes.value_heads, a.sizes.value_dim) &&
                  make_tensor_map(maps.w, a.element, a.w, rows, a.sizes.value_heads, a.sizes.value_dim) &&
                  make_tensor_map(maps.o, a.element, a.o, rows, a.sizes.value_heads, a.sizes.value_dim);
  return launch_gdn2_scan<E, padded_k>(scan, maps, Start::beside_previous, stream);
}

template <class E, int padded_k>
cudaError_t run(const Gdn2Forward& a, void* base, cudaStream_t stream) {
  Chunks chunks = make_chunks(a.sizes);
  const auto [table, p, bytes] = parts(a, chunks, base);
  if (cudaError_t e = launch_plan(chunks, table, stream); e != cudaSuccess) return e;
  const Segments segments = gdn2_segments(a, chunks, p.forgetting);
  if (cudaError_t e = prepare<E, padded_k>(a, chunks, segments, p, stream); e != cudaSuccess) return e;
  if (cudaError_t e = scan<E, padded_k>(a, chunks, segments, p, stream); e != cudaSuccess) return e;
  return launch_zero_uncovered(chunks, a.o, std::int64_t{2} * a.sizes.value_heads * a.sizes.value_dim,
                               stream);
}

}  // namespace

std::size_t prepared_bytes(const Gdn2Forward& a) {
  Workspace memory(nullptr);
  Gdn2Prepared::take(memory, a.sizes, a.gate_heads, make_chunks(a.sizes), true);
  return memory.bytes();
}

std::size_t workspace_bytes(const Gdn2Forward& a) {
  return parts(a, make_chunks(a.sizes), nullptr).bytes;
}

cudaError_t forward(const Gdn2Forward& a, void* workspace, cudaStream_t stream) {
  return for_type_and_width(a.element, a.sizes.key_dim,
                            [&]<class E, int padded_k>() { return run<E, padded_k>(a, workspace, stream); });
}

}  // namespace deltaport::recurrence::cuda
