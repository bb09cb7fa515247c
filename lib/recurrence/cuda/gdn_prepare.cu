// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn_prepare.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/inverse.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/products.cuh"

namespace deltaport::recurrence::cuda {
namespace {

constexpr int threads = 128, blocks_together = 4;

/// Shared memory of a block; tiles first, for their alignment. Then 6 x 64 factors, a sum, a barrier.
template <int padded_k>
struct Layout {
  static constexpr int k = 0;               // 64 x K
  static constexpr int q = padded_k * 128;  // 64 x K, then L in float, then A high + low, then X
  static constexpr int high = q, low = q + panel_bytes;
  static constexpr int r = q + (64 * triangle_pitch * 4 + 1023) / 1024 * 1024;
  static constexpr int factors = r + panel_bytes;
  static constexpr int bytes = factors + (factor_rows * 64 + 4) * 4;
  static_assert(padded_k <= 128 && blocks_together * (bytes + 1024) <= 228 * 1024);
};

#if defined(DELTAPORT_BULK_COPY)
/// The tiles of the block that will run here next, into the second-level cache.
template <int padded_k>
__device__ void prefetch_later(const GdnPrepare& a, const TileMaps& maps) {
  const std::uint32_t block = blockIdx.x + a.resident;
  if (block >= gridDim.x) return;
  const int head = block % a.key_heads;
  const int row = static_cast<int>(a.chunks.at(a.chunks.in_time(block / a.key_heads, true)).row);
#pragma unroll
  for (int panel = 0; panel < padded_k / 64; ++panel) {
    prefetch_tile_bulk(&maps.q, 64 * panel, head, row);
    prefetch_tile_bulk(&maps.k, 64 * panel, head, row);
  }
}
#endif

/// Starts the copies of Q and K; the copy engine takes chunks of 64 rows.
template <int padded_k>
__device__ void load_tiles(const GdnPrepare& a, const TileMaps& maps, const Chunk& chunk, int key_head,
                           std::uint32_t base, std::uint64_t* barrier) {
  using L = Layout<padded_k>;
#if defined(DELTAPORT_BULK_COPY)
  if (a.use_maps && chunk.rows == chunk_rows) {
    if (threadIdx.x == 0) {
      barrier_arrive_expect(barrier, 2 * padded_k * 128);
#pragma unroll
      for (int panel = 0; panel < padded_k / 64; ++panel) {
        const int row = static_cast<int>(chunk.row), at = panel * panel_bytes;
        copy_tile_bulk(base + L::q + at, &maps.q, 64 * panel, key_head, row, barrier);
        copy_tile_bulk(base + L::k + at, &maps.k, 64 * panel, key_head, row, barrier);
      }
      prefetch_later<padded_k>(a, maps);
    }
    return;
  }
#endif
  const std::int64_t row_bytes = std::int64_t{2} * a.key_heads * a.key_dim;
  const std::int64_t offset = chunk.row * row_bytes + std::int64_t{2} * key_head * a.key_dim;
  copy_tile_async<padded_k, threads>(base + L::q, static_cast<const char*>(a.q) + offset, row_bytes,
                                     chunk.rows, a.key_dim, threadIdx.x);
  copy_tile_async<padded_k, threads>(base + L::k, static_cast<const char*>(a.k) + offset, row_bytes,
                                     chunk.rows, a.key_dim, threadIdx.x);
  copies_commit();
}
__device__ __forceinline__ void wait_tiles(const GdnPrepare& a, const Chunk& chunk, std::uint64_t* barrier) {
#if defined(DELTAPORT_BULK_COPY)
  if (a.use_maps && chunk.rows == chunk_rows) {
    barrier_wait(barrier, 0);
    return;
  }
#endif
  copies_wait<0>();
  fence_async_proxy();
  __syncthreads();
}

/// 1 / |row| from the diagonal of the products of a tile with itself: each is in one lane.
__device__ void write_norms(float* norms, const float (&gram)[32], bool l2_norm, int rows, int warp,
                            int lane) {
  const int within = lane / 4;  // row in a block of 8, and so the column
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if (w != warp) continue;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int d = 4 * (2 * w + part) + 2 * part, row = 16 * w + within + 8 * part;
      const float square = within % 2 == 0 ? gram[d] : gram[d + 1];
      if (lane % 4 == within / 2) norms[row] = l2_norm && row < rows ? rsqrtf(square + 1e-6f) : 1.0f;
    }
  }
}

/// What the gates of one token and value head are made of; zero beyond the chunk.
struct RawGates {
  float decay = 0.0f, beta = 0.0f;
};
template <class E>
__device__ RawGates read_gates(const GdnPrepare& a, const Chunk& chunk, int head) {
  RawGates gates;
  const int t = threadIdx.x;
  if (t < chunk.rows) {
    const std::int64_t at = (chunk.row + t) * a.value_heads + head;
    gates.decay =
        a.activations.gate == Gate::log_decay ? a.g[at] : to_float(static_cast<const E*>(a.raw_gate)[at]);
    gates.beta =
        a.activations.beta == Beta::plain ? a.beta[at] : to_float(static_cast<const E*>(a.raw_beta)[at]);
  }
  return gates;
}
/// Thread t has row t, if there is one; writes all factor rows but the norms' own.
__device__ void write_factors(const GdnPrepare& a, const Chunk& chunk, int head, RawGates gates,
                              float* factors, float* total, float* forgetting) {
  const int t = threadIdx.x;
  float log2_decay = 0.0f, beta = 0.0f;
  if (t < chunk.rows) {
    float natural = gates.decay;
    if (a.activations.gate != Gate::log_decay) {
      if (a.activations.dt_bias != nullptr) natural += a.activations.dt_bias[head];
      const float rate = rate_of(a.activations, head);
      natural = log_decay(a.activations.gate, natural, rate, a.activations.gate_lower_bound);
    }
    // NaN stays NaN: a fault in the input must show.
    log2_decay = (natural < lowest_log_decay ? lowest_log_decay : natural) * log2_e;
    beta = beta_of(a.activations.beta, gates.beta);
  }
  const bool shrinks = __all_sync(0xffffffffu, beta >= 0.0f && beta <= 2.0f);
  if (t == 0) total[1] = shrinks ? 1.0f : 0.0f;
  const float sum = sum_inclusive_64(log2_decay, total, t);
  if (t == 63) *forgetting = a.activations.l2_norm && shrinks && total[1] != 0.0f ? sum : 0.0f;
  const float decay = exp2_fast(sum);
  if (t >= 64) return;
  factors[factor_beta * 64 + t] = beta;
  factors[factor_decay * 64 + t] = sum;
  factors[factor_erase * 64 + t] = beta * decay * factors[factor_key_norm * 64 + t];
  factors[factor_query * 64 + t] =
      t < chunk.rows ? a.activations.scale * decay * factors[factor_query_norm * 64 + t] : 0.0f;
}

/// Rows 16 warp.. of the strictly lower L_ij = beta_i (k_i . k_j) from the raw products.
__device__ void write_triangle(float* triangle, const float (&kk)[32], const float* factors, int warp,
                               int lane) {
  const float *norm = factors + factor_key_norm * 64, *beta = factors + factor_beta * 64;
  const int i = 16 * warp + lane / 4;
  const float factor[2] = {beta[i] * norm[i], beta[i + 8] * norm[i + 8]};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > warp) break;
    const int j = 8 * n + 2 * (lane % 4);
    const float2 norms = *reinterpret_cast<const float2*>(norm + j);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float x = kk[4 * n + 2 * part] * factor[part] * norms.x;
      const float y = kk[4 * n + 2 * part + 1] * factor[part] * norms.y;
      *reinterpret_cast<float2*>(triangle + (i + 8 * part) * triangle_pitch + j) =
          make_float2(j < i + 8 * part ? x : 0.0f, j + 1 < i + 8 * part ? y : 0.0f);
    }
  }
}

/// P = tril(Q K^T) with the norms of q, as the register operand of P A.
template <class E>
__device__ void make_p(std::uint32_t (&p)[4][4], const float (&qk)[32], const float* query_norm, int warp,
                       int lane) {
  const int i = 16 * warp + lane / 4;
  const float norm[2] = {query_norm[i], query_norm[i + 8]};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int j = 8 * n + 2 * (lane % 4);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float x = qk[4 * n + 2 * part] * norm[part], y = qk[4 * n + 2 * part + 1] * norm[part];
      p[n / 2][2 * (n % 2) + part] = pack<E>(j <= i + 8 * part ? x : 0.0f, j + 1 <= i + 8 * part ? y : 0.0f);
    }
  }
}

/// 2^x for x <= 0; above the diagonal, where the difference of sums is positive, some number that is not inf.
__device__ __forceinline__ float decay_between(float x) {
  return exp2_fast(x > 0.0f ? 0.0f : x);
}

/// R = scale D o (P A), rounded, to a tile.
template <class E>
__device__ void write_r(std::uint32_t tile, const float (&pa)[32], const float* decay, float scale, int warp,
                        int lane) {
  const int i = 16 * warp + lane / 4;
  const float g[2] = {decay[i], decay[i + 8]};
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    std::uint32_t r[4] = {};
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      if (s > warp) break;  // above the diagonal
      const int row = i + 8 * (part % 2), j = 16 * s + 8 * (part / 2) + 2 * (lane % 4);
      const float2 from = *reinterpret_cast<const float2*>(decay + j);
      const int d = 8 * s + 2 * part;
      const float x = scale * decay_between(g[part % 2] - from.x) * pa[d];
      const float y = scale * decay_between(g[part % 2] - from.y) * pa[d + 1];
      r[part] = pack<E>(j <= row ? x : 0.0f, j + 1 <= row ? y : 0.0f);
    }
    store_a(tile, 16 * warp, 16 * s, r);
  }
}

/// 64 columns of X = c o (A^T K), rounded.
template <class E>
__device__ void round_x(std::uint32_t (&to)[4][4], float (&x)[32], const float* decay, int warp, int lane) {
  const float last = decay[63];
  const int row = 16 * warp + lane / 4;
  const float c[2] = {exp2_fast(last - decay[row]), exp2_fast(last - decay[row + 8])};
  scale_rows(x, c);
  as_operand<E>(to, x);
}

/// What a thread takes of A = (I + L)^-1 (see invert_unit_lower): units 2 s + thread % 2 of row thread / 2.
struct InverseRow {
  float x[4][8];

  __device__ void read(const float* triangle) {
    const int thread = threadIdx.x, i = thread / 2, row_block = i / 16;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const float* const from =
          s == row_block ? triangle + i * triangle_pitch + 16 * s + 8 * (thread % 2)
                         : triangle + (16 * s + i % 16) * triangle_pitch + 16 * row_block + 8 * (thread % 2);
      const float4 zero = {}, left = s <= row_block ? *reinterpret_cast<const float4*>(from) : zero,
                   right = s <= row_block ? *reinterpret_cast<const float4*>(from + 4) : zero;
      x[s][0] = left.x, x[s][1] = left.y, x[s][2] = left.z, x[s][3] = left.w;
      x[s][4] = right.x, x[s][5] = right.y, x[s][6] = right.z, x[s][7] = right.w;
    }
  }
  /// store(offset, high, low): 16 bytes of the tiles of `factor` A rounded, and of what the rounding left.
  template <class E, class Store>
  __device__ void split(float factor, Store store) const {
    const int thread = threadIdx.x, i = thread / 2;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t high[4], low[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float first = factor * x[s][2 * n], second = factor * x[s][2 * n + 1];
        high[n] = pack<E>(first, second);
        const float2 rounded = unpack<E>(high[n]);
        low[n] = pack<E>(first - rounded.x, second - rounded.y);
      }
      store(i * 128 + (((thread % 2 ^ i % 8) << 4) ^ (s << 5)),
            make_uint4(high[0], high[1], high[2], high[3]), make_uint4(low[0], low[1], low[2], low[3]));
    }
  }
};

template <class E, int padded_k>
struct Block {
  using L = Layout<padded_k>;
  static constexpr int steps = padded_k / 16;

  const GdnPrepare& a;
  const TileMaps& maps;
  unsigned char* memory;
  Chunk chunk;

  __device__ std::uint32_t at(int offset) const { return shared_address(memory) + offset; }
  __device__ float* triangle() const { return reinterpret_cast<float*>(memory + L::q); }
  __device__ float* factors() const { return reinterpret_cast<float*>(memory + L::factors); }
  __device__ const float* factor(int row) const { return factors() + 64 * row; }
  __device__ std::uint64_t* barrier() const {
    return reinterpret_cast<std::uint64_t*>(factors() + factor_rows * 64 + 2);
  }
  /// d = left right^T. Accumulators are cleared: what a product ignores would else stay alive around the loop over heads.
  __device__ void gram(float (&d)[32], int left, int right) const {
    clear(d);
    add_tiles<E, Tile::by_rows, Tile::by_rows, steps>(d, at(left), at(right));
  }

  /// P as an operand; the norms of q.
  __device__ void take_queries(std::uint32_t (&p)[4][4], int warp, int lane) const {
    float* const norms = factors() + factor_query_norm * 64;
    float products[32];
    if (a.activations.l2_norm) gram(products, L::q, L::q);
    write_norms(norms, products, a.activations.l2_norm, chunk.rows, warp, lane);
    gram(products, L::q, L::k);
    __syncwarp();  // this warp's rows
    make_p<E>(p, products, norms, warp, lane);
  }
  /// L, and the factors of a head.
  __device__ void take_keys(int head, int member, const RawGates& gates, float* forgetting, int warp,
                            int lane) const {
    float products[32];
    gram(products, L::k, L::k);  // again for every head of the group: cheaper than registers that hold it
    if (member == 0) {
      write_norms(factors() + factor_key_norm * 64, products, a.activations.l2_norm, chunk.rows, warp, lane);
      __syncthreads();
    }
    write_factors(a, chunk, head, gates, factors(), factors() + factor_rows * 64, forgetting);
    __syncthreads();
    write_triangle(triangle(), products, factors(), warp, lane);
  }
  /// A to its two tiles, rows times the norms of the keys; without those to device memory, for the backward pass.
  __device__ void take_inverse(std::int64_t chunk_head) const {
    invert_unit_lower(triangle(), threadIdx.x / 32);
    __syncthreads();
    InverseRow row;
    row.read(triangle());
    if (a.inverse != nullptr) {
      char* const to = static_cast<char*>(a.inverse) + chunk_head * 2 * panel_bytes;
      row.template split<E>(1.0f, [&](int offset, uint4 high, uint4 low) {
        *reinterpret_cast<uint4*>(to + offset) = high;
        *reinterpret_cast<uint4*>(to + panel_bytes + offset) = low;
      });
    }
    __syncthreads();
    row.template split<E>(factor(factor_key_norm)[threadIdx.x / 2], [&](int offset, uint4 high, uint4 low) {
      store_shared16(at(L::high) + offset, high);
      store_shared16(at(L::low) + offset, low);
    });
    fence_async_proxy();
    __syncthreads();
  }
  /// R and X to their tiles.
  __device__ void make_results(const std::uint32_t (&p)[4][4], int warp, int lane) const {
    const float* const decay = factor(factor_decay);
    {
      float pa[32];
      clear(pa);
      add_all(pa, [&] {
        multiply<E, Tile::by_columns>(pa, p, at(L::high), true);
        multiply<E, Tile::by_columns>(pa, p, at(L::low), true);
      });
      write_r<E>(at(L::r), pa, decay, a.activations.scale, warp, lane);
    }
    std::uint32_t rounded[padded_k / 64][4][4];
#pragma unroll
    for (int panel = 0; panel < padded_k / 64; ++panel) {
      float x[32];
      clear(x);
      add_left_parts<E, Tile::by_columns, Tile::by_columns>(x, at(L::high), at(L::k + panel * panel_bytes),
                                                            true);
      round_x<E>(rounded[panel], x, decay, warp, lane);
    }
    __syncthreads();  // X takes the place of A
#pragma unroll
    for (int panel = 0; panel < padded_k / 64; ++panel) {
#pragma unroll
      for (int s = 0; s < 4; ++s)
        store_a(at(L::q + panel * panel_bytes), 16 * warp, 16 * s, rounded[panel][s]);
    }
    fence_async_proxy();
    __syncthreads();
  }
  /// X, R and the factors to device memory; their places are free afterwards, for this thread.
  __device__ void store(std::int64_t chunk_head) const {
    char* const x = static_cast<char*>(a.x) + chunk_head * padded_k * 128;
    char* const r = static_cast<char*>(a.r) + chunk_head * panel_bytes;
    float* const numbers = a.factors + chunk_head * factor_rows * 64;
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) {
      store_bulk(x, at(L::q), padded_k * 128);
      store_bulk(r, at(L::r), panel_bytes);
      store_bulk(numbers, at(L::factors), factor_rows * 256);
      bulk_stores_wait_read();
    }
#else
    store_image<padded_k * 128, threads>(x, at(L::q), threadIdx.x);
    store_image<panel_bytes, threads>(r, at(L::r), threadIdx.x);
    for (int i = threadIdx.x; i < factor_rows * 16; i += threads) {
      reinterpret_cast<float4*>(numbers)[i] = reinterpret_cast<const float4*>(factors())[i];
    }
#endif
  }
};

template <class E, int padded_k>
__global__ void __launch_bounds__(threads, blocks_together)
    gdn_prepare(const GdnPrepare a, const __grid_constant__ TileMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t slot = a.chunks.in_time(blockIdx.x / a.key_heads, true);
  const int key_head = blockIdx.x % a.key_heads, group = a.value_heads / a.key_heads;
  const Chunk chunk = a.chunks.at(slot);
  if (chunk.rows == 0) return;
  const Block<E, padded_k> block{a, maps, memory, chunk};

  if (threadIdx.x == 0) barrier_init(block.barrier(), 1);
  __syncthreads();
  load_tiles<padded_k>(a, maps, chunk, key_head, block.at(0), block.barrier());
  RawGates gates = read_gates<E>(a, chunk, key_head * group);
  wait_tiles(a, chunk, block.barrier());
  dependency_launch();

  std::uint32_t p[4][4];
  block.take_queries(p, warp, lane);
  __syncthreads();  // L takes the place of Q
  for (int member = 0; member < group; ++member) {
    const int head = key_head * group + member;
    const std::int64_t chunk_head = slot * a.value_heads + head;
    block.take_keys(head, member, gates, a.forgetting + chunk_head, warp, lane);
    if (member + 1 < group) gates = read_gates<E>(a, chunk, head + 1);
    block.take_inverse(chunk_head);
    block.make_results(p, warp, lane);
    block.store(chunk_head);
    __syncthreads();
  }
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn_prepare(const GdnPrepare& arguments, const TileMaps& maps, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.chunks.slots() * arguments.key_heads));
  return launch(gdn_prepare<E, padded_k>, grid, threads, Layout<padded_k>::bytes, Start::after_previous,
                stream, arguments, maps);
}

template cudaError_t launch_gdn_prepare<Bf16, 64>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Bf16, 128>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Half, 64>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Half, 128>(const GdnPrepare&, const TileMaps&, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
