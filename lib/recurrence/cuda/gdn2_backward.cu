// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2.hpp"
#include "recurrence/cuda/gdn2_gradients.cuh"
#include "recurrence/cuda/gdn2_prepare.cuh"
#include "recurrence/cuda/gdn2_reverse.cuh"
#include "recurrence/cuda/gdn2_scan.cuh"
#include "recurrence/cuda/plan.cuh"
#include "recurrence/cuda/tile.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// All parts of the backward workspace.
struct Parts {
  Chunk* table;
  Gdn2Prepared prepared;
  void *states, *d_states;
  float *sums, *rate_partials, *bias_partials;
  Gdn2Between between;
  std::size_t bytes;
};

Parts parts(const Gdn2Backward& a, const Chunks& chunks, void* base) {
  const Sizes& sizes = a.forward.sizes;
  Workspace workspace(base);
  Parts p;
  const std::int64_t padded_k = padded(sizes.key_dim), wide = padded_k * 128;
  const std::int64_t images = chunks.slots() * a.forward.gate_heads,
                     states = chunks.slots() * sizes.value_heads * ((sizes.value_dim + 63) / 64);
  p.table = workspace.take<Chunk>(chunks.cu_seqlens != nullptr ? chunks.slots() : 0);
  const bool kept = a.forward.prepared != nullptr;
  Workspace memory(a.forward.prepared);
  p.prepared = Gdn2Prepared::take(kept ? memory : workspace, sizes, a.forward.gate_heads, chunks, true);
  p.states = workspace.take<char>(states * wide);
  p.d_states = workspace.take<char>(states * wide);
  if (kept) {
    p.between.d_query = workspace.take<char>(images * wide);
    p.between.d_erase = workspace.take<char>(images * wide);
    p.between.d_restored = workspace.take<char>(images * wide);
    p.between.scores = workspace.take<char>(images * 2 * panel_bytes);
  } else {
    // A block of the first gradient kernel is the last reader of its own images, and leaves as much in their place.
    p.between.d_query = p.prepared.query, p.between.d_erase = p.prepared.erase;
    p.between.d_restored = p.prepared.x, p.between.scores = p.prepared.inverse;
  }
  p.between.undo = workspace.take<float>(4 * images);
  p.between.d_gamma = workspace.take<float>(images * padded_k);
  // At least two value heads to a key head then: the states and their gradients, which nobody reads any more, suffice.
  p.sums = a.forward.gate_heads == sizes.key_heads ? nullptr : static_cast<float*>(p.states);
  p.rate_partials =
      workspace.take<float>(a.d_a_log == nullptr ? 0 : images * gdn2_channel_blocks(sizes.key_dim));
  p.bias_partials = workspace.take<float>(a.d_dt_bias == nullptr ? 0 : images * sizes.key_dim);
  if (a.d_a_log == nullptr) p.rate_partials = nullptr;
  if (a.d_dt_bias == nullptr) p.bias_partials = nullptr;
  p.bytes = workspace.bytes();
  return p;
}

/// The passes of one call, in their order.
template <class E, int padded_k>
struct Passes {
  const Gdn2Backward& a;
  const Gdn2Forward& f;
  const Chunks& chunks;
  const Parts& p;
  cudaStream_t stream;
  Gdn2PrepareMaps prepare_maps;
  CUtensorMap v, w, d_o;
  Gdn2Prepare prepare;
  Segments segments;
  bool use_maps = false;

  void describe() {
    const Sizes& sizes = f.sizes;
    const std::int64_t rows = sizes.batch * sizes.tokens;
    const auto describe = [&](CUtensorMap& map, const void* base, int heads, int dim) {
      return make_tensor_map(map, f.element, base, rows, heads, dim);
    };
    use_maps = describe(prepare_maps.q, f.q, sizes.key_heads, sizes.key_dim) &&
               describe(prepare_maps.k, f.k, sizes.key_heads, sizes.key_dim) &&
               describe(prepare_maps.b, f.b, f.gate_heads, sizes.key_dim) &&
               describe(v, f.v, sizes.value_heads, sizes.value_dim) &&
               describe(w, f.w, sizes.value_heads, sizes.value_dim) &&
               describe(d_o, a.d_o, sizes.value_heads, sizes.value_dim);
    prepare.chunks = chunks, prepare.activations = f.activations, prepare.use_maps = use_maps;
    prepare.key_heads = sizes.key_heads, prepare.gate_heads = f.gate_heads, prepare.key_dim = sizes.key_dim;
    prepare.q = f.q, prepare.k = f.k, prepare.b = f.b, prepare.g = f.g, prepare.raw_gate = f.raw_gate;
    prepare.erase = p.prepared.erase, prepare.query = p.prepared.query, prepare.x = p.prepared.x,
    prepare.r = p.prepared.r;
    segments = gdn2_segments(f, chunks, p.prepared.forgetting);
    prepare.segments = segments, prepare.forgetting = p.prepared.forgetting;
    prepare.gamma = p.prepared.gamma, prepare.inverse = p.prepared.inverse, prepare.norms = p.prepared.norms;
  }
  cudaError_t states() const {
    Gdn2Scan scan;
    scan.chunks = chunks, scan.segments = segments, scan.use_maps = use_maps,
    scan.write_sigmoid = f.activations.write_sigmoid;
    scan.gate_heads = f.gate_heads, scan.value_heads = f.sizes.value_heads;
    scan.key_dim = f.sizes.key_dim, scan.value_dim = f.sizes.value_dim;
    scan.v = f.v, scan.w = f.w;
    scan.erase = p.prepared.erase, scan.query = p.prepared.query, scan.x = p.prepared.x,
    scan.r = p.prepared.r, scan.gamma = p.prepared.gamma;
    scan.initial_state = f.initial_state, scan.states = p.states;
    return launch_gdn2_scan<E, padded_k>(scan, Gdn2ScanMaps{v, w, v}, first_of(f.prepared), stream);
  }
  cudaError_t reverse() const {
    Gdn2Reverse reverse;
    reverse.chunks = chunks, reverse.segments = segments, reverse.use_maps = use_maps;
    reverse.gate_heads = f.gate_heads, reverse.value_heads = f.sizes.value_heads;
    reverse.key_dim = f.sizes.key_dim, reverse.value_dim = f.sizes.value_dim;
    reverse.d_o = a.d_o, reverse.erase = p.prepared.erase, reverse.query = p.prepared.query,
    reverse.x = p.prepared.x, reverse.r = p.prepared.r;
    reverse.gamma = p.prepared.gamma, reverse.d_final_state = a.d_final_state;
    reverse.d_states = p.d_states, reverse.d_initial_state = a.d_initial_state;
    return launch_gdn2_reverse<E, padded_k>(reverse, Gdn2ReverseMaps{d_o}, stream);
  }
  cudaError_t gradients() const {
    Gdn2Gradients gradients;
    gradients.chunks = chunks, gradients.use_maps = use_maps;
    gradients.write_sigmoid = f.activations.write_sigmoid, gradients.l2_norm = f.activations.l2_norm;
    gradients.scale = f.activations.scale;
    gradients.gate_heads = f.gate_heads, gradients.value_heads = f.sizes.value_heads;
    gradients.key_dim = f.sizes.key_dim, gradients.value_dim = f.sizes.value_dim;
    gradients.v = f.v, gradients.w = f.w, gradients.d_o = a.d_o;
    gradients.states = p.states, gradients.d_states = p.d_states;
    gradients.erase = p.prepared.erase, gradients.x = p.prepared.x, gradients.r = p.prepared.r,
    gradients.inverse = p.prepared.inverse;
    gradients.norms = p.prepared.norms, gradients.dv = a.dv, gradients.dw = a.dw,
    gradients.between = p.between;
    return launch_gdn2_gradients<E, padded_k>(gradients, Gdn2GradientMaps{v, w, d_o}, stream);
  }
  cudaError_t channels() const {
    Gdn2Channels channels;
    channels.input = prepare, channels.between = p.between, channels.sums = p.sums;
    channels.dq = a.dq, channels.dk = a.dk, channels.db = a.db;
    channels.dg = a.dg, channels.d_raw_gate = a.d_raw_gate;
    channels.rate_partials = p.rate_partials, channels.bias_partials = p.bias_partials;
    const cudaError_t error = launch_gdn2_channels<E, padded_k>(channels, prepare_maps, stream);
    if (error != cudaSuccess || (a.d_a_log == nullptr && a.d_dt_bias == nullptr)) return error;
    return launch_gdn2_sum_partials(channels, a.d_a_log, a.d_dt_bias, stream);
  }
  cudaError_t zero() const {
    cudaError_t error = cudaSuccess;
    const auto rows = [&](void* to, std::int64_t row_bytes) {
      if (error == cudaSuccess) error = launch_zero_uncovered(chunks, to, row_bytes, stream);
    };
    const std::int64_t keys = std::int64_t{2} * f.sizes.key_heads * f.sizes.key_dim,
                       gates = std::int64_t{2} * f.gate_heads * f.sizes.key_dim,
                       values = std::int64_t{2} * f.sizes.value_heads * f.sizes.value_dim;
    rows(a.dq, keys), rows(a.dk, keys), rows(a.dv, values), rows(a.dw, values);
    rows(a.db, gates), rows(a.d_raw_gate, gates), rows(a.dg, 2 * gates);
    return error;
  }
};

template <class E, int padded_k>
cudaError_t run(const Gdn2Backward& a, void* base, cudaStream_t stream) {
  Chunks chunks = make_chunks(a.forward.sizes);
  const Parts p = parts(a, chunks, base);
  if (cudaError_t e = launch_plan(chunks, p.table, stream); e != cudaSuccess) return e;
  Passes<E, padded_k> passes{a, a.forward, chunks, p, stream};
  passes.describe();
  cudaError_t e = cudaSuccess;
  if (a.forward.prepared == nullptr)
    e = launch_gdn2_prepare<E, padded_k>(passes.prepare, passes.prepare_maps, stream);
  if (e == cudaSuccess) e = passes.states();
  if (e == cudaSuccess) e = passes.reverse();
  if (e == cudaSuccess) e = passes.gradients();
  if (e == cudaSuccess) e = passes.channels();
  if (e == cudaSuccess) e = passes.zero();
  return e;
}

}  // namespace

std::size_t workspace_bytes(const Gdn2Backward& a) {
  return parts(a, make_chunks(a.forward.sizes), nullptr).bytes;
}

cudaError_t backward(const Gdn2Backward& a, void* workspace, cudaStream_t stream) {
  return for_type_and_width(a.forward.element, a.forward.sizes.key_dim,
                            [&]<class E, int padded_k>() { return run<E, padded_k>(a, workspace, stream); });
}

}  // namespace deltaport::recurrence::cuda
