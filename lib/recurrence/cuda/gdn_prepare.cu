// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn_prepare.cuh"

#include "recurrence/cuda/inverse.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

constexpr int threads = 128;

/// Shared memory of a block; tiles first, for their alignment. Then 6 x 64 factors, a sum, a barrier.
template <int padded_k>
struct Layout {
  static constexpr int k = 0;               // 64 x K
  static constexpr int q = padded_k * 128;  // 64 x K, then A high + low, then X
  static constexpr int q_bytes = padded_k > 128 ? padded_k * 128 : 2 * panel_bytes;
  static constexpr int triangle = q + q_bytes;  // float, then R
  static constexpr int factors = triangle + 64 * triangle_pitch * 4;
  static constexpr int bytes = factors + (factor_rows * 64 + 4) * 4;
};

#if defined(DELTAPORT_BULK_COPY)
/// The tiles of the block that will run here next, into the second-level cache.
template <int padded_k>
__device__ void prefetch_later(const GdnPrepare& a, const TileMaps& maps) {
  const std::int64_t block = std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x + a.resident;
  const std::int64_t slot = block % gridDim.x;
  const int head = static_cast<int>(block / gridDim.x);
  if (head >= a.key_heads) return;
  const int row = static_cast<int>(a.chunks.at(slot).row);
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

/// X = c o (A^T K), rounded, to a tile.
template <class E, int n>
__device__ void write_x(std::uint32_t tile, const float (&x)[n], const float* decay, int warp, int lane) {
  const float last = decay[63];
  const float c0 = exp2_fast(last - decay[16 * warp + lane / 4]),
              c1 = exp2_fast(last - decay[16 * warp + lane / 4 + 8]);
#pragma unroll
  for (int s = 0; s < n / 8; ++s) {
    const std::uint32_t r[4] = {
        pack<E>(c0 * x[8 * s], c0 * x[8 * s + 1]), pack<E>(c1 * x[8 * s + 2], c1 * x[8 * s + 3]),
        pack<E>(c0 * x[8 * s + 4], c0 * x[8 * s + 5]), pack<E>(c1 * x[8 * s + 6], c1 * x[8 * s + 7])};
    store_a(tile, 16 * warp, 16 * s, r);
  }
}

template <class E, int padded_k>
__global__ void __launch_bounds__(threads, 4)
    gdn_prepare(const GdnPrepare a, const __grid_constant__ TileMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using L = Layout<padded_k>;
  const std::uint32_t base = shared_address(memory);
  float* const triangle = reinterpret_cast<float*>(memory + L::triangle);
  float* const factors = reinterpret_cast<float*>(memory + L::factors);
  float* const total = factors + factor_rows * 64;
  std::uint64_t* const barrier = reinterpret_cast<std::uint64_t*>(factors + factor_rows * 64 + 2);
  const float* const decay = factors + factor_decay * 64;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t slot = blockIdx.x;
  const int key_head = blockIdx.y, group = a.value_heads / a.key_heads;
  const Chunk chunk = a.chunks.at(slot);
  if (chunk.rows == 0) return;

  if (thread == 0) barrier_init(barrier, 1);
  __syncthreads();
  load_tiles<padded_k>(a, maps, chunk, key_head, base, barrier);
  RawGates gates = read_gates<E>(a, chunk, key_head * group);
  wait_tiles(a, chunk, barrier);
  dependency_launch();

  std::uint32_t operand[padded_k / 16][4], p[4][4];
  const auto gram = [&](float(&d)[32], std::uint32_t tile) {
    hold(d);
    products_begin();
    multiply<E, Tile::by_rows>(d, operand, tile, false);
    products_commit();
  };
  const auto take_rows = [&](std::uint32_t tile) {
#pragma unroll
    for (int s = 0; s < padded_k / 16; ++s) load_a(operand[s], tile, 16 * warp, 16 * s);
  };
  {
    float qk[32], qq[32];
    take_rows(base + L::q);
    if (a.activations.l2_norm) {
      gram(qq, base + L::q);
      products_wait<0>();
      hold(qq);
    }
    gram(qk, base + L::k);
    write_norms(factors + factor_query_norm * 64, qq, a.activations.l2_norm, chunk.rows, warp, lane);
    products_wait<0>();
    hold(qk);
    __syncwarp();  // this warp's rows
    make_p<E>(p, qk, factors + factor_query_norm * 64, warp, lane);
  }

  for (int member = 0; member < group; ++member) {
    const int head = key_head * group + member;
    const std::int64_t chunk_head = slot * a.value_heads + head;
    float kk[32];
    take_rows(base + L::k);
    gram(kk, base + L::k);  // again for every head of the group: cheaper than registers that hold it
    products_wait<0>();
    hold(kk);
    if (member == 0) {
      write_norms(factors + factor_key_norm * 64, kk, a.activations.l2_norm, chunk.rows, warp, lane);
      __syncthreads();
    }
    write_factors(a, chunk, head, gates, factors, total, a.forgetting + chunk_head);
    __syncthreads();
    if (member + 1 < group) gates = read_gates<E>(a, chunk, head + 1);
    write_triangle(triangle, kk, factors, warp, lane);
    for (int i = thread; i < factor_rows * 16; i += threads) {
      reinterpret_cast<float4*>(a.factors + chunk_head * factor_rows * 64)[i] =
          reinterpret_cast<const float4*>(factors)[i];
    }
    invert_unit_lower(triangle, warp);
    const std::uint32_t high = base + L::q, low = high + panel_bytes;
    __syncthreads();
    if (a.inverse != nullptr) {
      split_inverse<E>(triangle, nullptr, high, low, thread);
      __syncthreads();
      store_image<2 * panel_bytes, threads>(static_cast<char*>(a.inverse) + chunk_head * 2 * panel_bytes,
                                            high, thread);
      __syncthreads();
    }
    split_inverse<E>(triangle, factors + factor_key_norm * 64, high, low, thread);
    fence_async_proxy();
    __syncthreads();
    {
      float pa[32];
      hold(pa);
      products_begin();
      multiply<E, Tile::by_columns>(pa, p, high, false);
      multiply<E, Tile::by_columns>(pa, p, low, true);
      products_commit();
      products_wait<0>();
      hold(pa);
      write_r<E>(base + L::triangle, pa, decay, a.activations.scale, warp, lane);
    }
    std::uint32_t part[2][4][4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      load_a_transposed(part[0][s], high, 16 * s, 16 * warp);
      load_a_transposed(part[1][s], low, 16 * s, 16 * warp);
    }
    __syncthreads();  // A is in registers: X takes its place
#pragma unroll
    for (int panel = 0; panel < padded_k / 64; ++panel) {
      float x[32];
      hold(x);
      products_begin();
      multiply<E, Tile::by_columns>(x, part[0], base + L::k + panel * panel_bytes, false);
      multiply<E, Tile::by_columns>(x, part[1], base + L::k + panel * panel_bytes, true);
      products_commit();
      products_wait<0>();
      hold(x);
      write_x<E>(base + L::q + panel * panel_bytes, x, decay, warp, lane);
    }
    __syncthreads();
    store_image<padded_k * 128, threads>(static_cast<char*>(a.x) + chunk_head * padded_k * 128, base + L::q,
                                         thread);
    store_image<panel_bytes, threads>(static_cast<char*>(a.r) + chunk_head * panel_bytes, base + L::triangle,
                                      thread);
    __syncthreads();
  }
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn_prepare(const GdnPrepare& arguments, const TileMaps& maps, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.chunks.slots()),
                  static_cast<unsigned>(arguments.key_heads));
  return launch(gdn_prepare<E, padded_k>, grid, threads, Layout<padded_k>::bytes, Start::after_previous,
                stream, arguments, maps);
}

template cudaError_t launch_gdn_prepare<Bf16, 64>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Bf16, 128>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Half, 64>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Half, 128>(const GdnPrepare&, const TileMaps&, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
