// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn_prepare.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn_prepare_gates.cuh"
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
  static constexpr int p = r + panel_bytes;
  static constexpr int factors = p + panel_bytes;
  static constexpr int bytes = factors + (factor_rows * 64 + 4) * 4;
  static_assert(padded_k <= 128 && blocks_together * (bytes + 1024) <= 228 * 1024);
};

#if defined(DELTAPORT_BULK_COPY)
/// The tiles of the block that will run here next, into the second-level cache; by one thread.
template <int padded_k>
__device__ __forceinline__ void prefetch_later(const GdnPrepare& a, const TileMaps& maps) {
  const std::uint32_t block = blockIdx.x + a.resident;
  if (block >= gridDim.x) return;
  const Task task = a.chunks.task(block, a.by_key_heads, true);
  const int row = static_cast<int>(task.chunk.row);
#pragma unroll
  for (int panel = 0; panel < padded_k / 64; ++panel) {
    prefetch_tile_bulk(&maps.q, 64 * panel, task.head, row);
    prefetch_tile_bulk(&maps.k, 64 * panel, task.head, row);
  }
}
#endif

/// Sets the barrier up and starts the copies of Q and K; the copy engine takes chunks of 64 rows. Its work is given by the
/// last warp, since the first ones read the gates.
template <int padded_k>
__device__ __forceinline__ void load_tiles(const GdnPrepare& a, const TileMaps& maps, const Chunk& chunk,
                                           int key_head, std::uint32_t base, std::uint64_t* barrier) {
  using L = Layout<padded_k>;
#if defined(DELTAPORT_BULK_COPY)
  if (a.use_maps && chunk.rows == chunk_rows) {
    if (threadIdx.x == threads - 32) {
      barrier_init(barrier, 1);
      barriers_publish();
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

/// The diagonal of a warp's rows of a 64 x 64 accumulator: elements own_row and own_row + 8, on the lanes that
/// holds_diagonal() names.
__device__ __forceinline__ void take_diagonal(float (&diagonal)[2], const float (&d)[32], unsigned warp,
                                              unsigned lane) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float even = d[6 * part], odd = d[6 * part + 1];
#pragma unroll
    for (unsigned w = 1; w < 4; ++w) {
      if (w == warp) even = d[8 * w + 6 * part], odd = d[8 * w + 6 * part + 1];
    }
    diagonal[part] = lane / 4 % 2 == 0 ? even : odd;
  }
}
__device__ __forceinline__ bool holds_diagonal(unsigned lane) {
  return lane / 8 == lane % 4;
}

/// Calls inside(s) for the blocks of 16 columns left of a warp's diagonal block, diagonal(s) for that and beyond(s) for
/// those above the diagonal. The warp is the same for all lanes, so that only one of them runs.
template <class Inside, class Diagonal, class Beyond>
__device__ __forceinline__ void for_column_blocks(unsigned warp, Inside inside, Diagonal diagonal,
                                                  Beyond beyond) {
#pragma unroll
  for (unsigned s = 0; s < 4; ++s) {
    if (s < warp) {
      inside(s);
    } else if (s == warp) {
      diagonal(s);
    } else {
      beyond(s);
    }
  }
}

/// Rows 16 warp.. of the strictly lower L_ij = beta_i (k_i . k_j) from the raw products.
__device__ __forceinline__ void write_triangle(float* triangle, const float (&kk)[32], const float* factors,
                                               unsigned warp, unsigned lane) {
  const float *norm = factors + factor_key_norm * 64, *beta = factors + factor_beta * 64;
  const unsigned i = 16 * warp + lane / 4, quad = 2 * (lane % 4);
  const float factor[2] = {beta[i] * norm[i], beta[i + 8] * norm[i + 8]};
  float* const to = triangle + i * triangle_pitch + quad;
  const auto write = [&](unsigned s, auto keep) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 norms = *reinterpret_cast<const float2*>(norm + 16 * s + 8 * n + quad);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int d = 8 * s + 4 * n + 2 * part;
        const float x = kk[d] * factor[part] * norms.x, y = kk[d + 1] * factor[part] * norms.y;
        *reinterpret_cast<float2*>(to + 8 * part * triangle_pitch + 16 * s + 8 * n) =
            make_float2(keep(8 * n, 8 * part) ? x : 0.0f, keep(8 * n + 1, 8 * part) ? y : 0.0f);
      }
    }
  };
  for_column_blocks(
      warp, [&](unsigned s) { write(s, [](int, int) { return true; }); },
      [&](unsigned s) {
        write(s, [&](int column, int row) { return int(quad) + column < int(lane / 4) + row; });
      },
      [](unsigned) {});
}

/// P = tril(Q K^T) with the norms of q, rounded, to a warp's rows of a tile.
template <class E>
__device__ __forceinline__ void write_p(std::uint32_t tile, const float (&qk)[32], const float (&norm)[2],
                                        unsigned warp, unsigned lane) {
  const int column = 2 * (lane % 4), row = lane / 4;
  const auto write = [&](unsigned s, auto keep) {
    std::uint32_t p[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int part = n % 2, right = n / 2 * 8, d = 8 * s + 2 * n;
      const float x = qk[d] * norm[part], y = qk[d + 1] * norm[part];
      p[n] = pack<E>(keep(right, 8 * part) ? x : 0.0f, keep(right + 1, 8 * part) ? y : 0.0f);
    }
    store_a(tile, 16 * warp, 16 * s, p);
  };
  for_column_blocks(
      warp, [&](unsigned s) { write(s, [](int, int) { return true; }); },
      [&](unsigned s) { write(s, [&](int right, int down) { return column + right <= row + down; }); },
      [&](unsigned s) {
        store_a(tile, 16 * warp, 16 * s, {0, 0, 0, 0});
      });
}

/// R = scale D o (P A), rounded, to a tile.
template <class E>
__device__ __forceinline__ void write_r(std::uint32_t tile, const float (&pa)[32], const float* decay,
                                        float scale, unsigned warp, unsigned lane) {
  const unsigned i = 16 * warp + lane / 4, quad = 2 * (lane % 4);
  const float g[2] = {decay[i], decay[i + 8]};
  const auto write = [&](unsigned s, auto element) {
    std::uint32_t r[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int part = n % 2, column = n / 2 * 8, d = 8 * s + 2 * n;
      const float2 from = *reinterpret_cast<const float2*>(decay + 16 * s + column + quad);
      r[n] = pack<E>(element(column, 8 * part, g[part] - from.x, pa[d]),
                     element(column + 1, 8 * part, g[part] - from.y, pa[d + 1]));
    }
    store_a(tile, 16 * warp, 16 * s, r);
  };
  for_column_blocks(
      warp,
      [&](unsigned s) {
        write(s, [&](int, int, float span, float x) { return scale * exp2_fast(span) * x; });
      },
      // Above the diagonal the difference of sums is positive, and its exponential may be infinite.
      [&](unsigned s) {
        write(s, [&](int column, int row, float span, float x) {
          const bool keep = int(quad) + column <= int(lane / 4) + row;
          return keep ? scale * exp2_fast(span) * x : 0.0f;
        });
      },
      [&](unsigned s) {
        store_a(tile, 16 * warp, 16 * s, {0, 0, 0, 0});
      });
}

/// Makes the compiler compute again what it knows of x: addresses kept for later would take the registers of products.
__device__ __forceinline__ void forget(unsigned& x) {
  asm volatile("" : "+r"(x));
}

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
  __device__ float* total() const { return factors() + factor_rows * 64; }
  __device__ std::uint64_t* barrier() const {
    return reinterpret_cast<std::uint64_t*>(factors() + factor_rows * 64 + 2);
  }
  /// Starts kk = K K^T. Accumulators are cleared: what a product ignores would else stay alive around the loop over heads.
  __device__ void multiply_keys(float (&kk)[32]) const {
    multiply_tiles<E, Tile::by_rows, Tile::by_rows, steps>(kk, at(L::k), at(L::k), true);
  }
  /// A warp's rows of Q as an operand; their squares, on the lanes of holds_diagonal().
  __device__ void read_queries(std::uint32_t (&q)[steps][4], float (&squares)[2], unsigned warp,
                               unsigned lane) const {
    float d[2][4] = {};
#pragma unroll
    for (int s = 0; s < steps; ++s) load_a(q[s], at(L::q), 16 * warp, 16 * s);
#pragma unroll
    for (int s = 0; s < steps; ++s) {  // the fragments of rows are those of columns too
      multiply_add<E>(d[0], q[s], q[s][0], q[s][2]);
      multiply_add<E>(d[1], q[s], q[s][1], q[s][3]);
    }
    const bool even = lane / 4 % 2 == 0;
    squares[0] = even ? d[0][0] : d[0][1], squares[1] = even ? d[1][2] : d[1][3];
  }
  /// The norms of a warp's rows from their squares.
  __device__ void write_norms(Factor norms, const float (&squares)[2], unsigned warp, unsigned lane) const {
    if (!holds_diagonal(lane)) return;
    float* const to = factors() + 64 * norms + 16 * warp + lane / 4;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const bool inside = a.activations.l2_norm && int(16 * warp + lane / 4 + 8 * part) < chunk.rows;
      to[8 * part] = inside ? rsqrtf(squares[part] + 1e-6f) : 1.0f;
    }
  }
  /// The gates of a head under the products K K^T, which are started here and stay under way.
  __device__ float start_keys(float (&kk)[32], int head, const RawGates& gates, bool& shrinks,
                              unsigned warp) const {
    clear(kk);
    hold(kk);
    products_begin();
    multiply_keys(kk);
    products_commit();
    return warp < 2 ? sum_gates(a, chunk, head, gates, factors(), total(), shrinks) : 0.0f;
  }
  /// L from them, and the rest of the factors.
  __device__ void take_keys(const float (&kk)[32], float sum, bool shrinks, float* forgetting, unsigned warp,
                            unsigned lane) const {
    __syncthreads();  // betas and the norms of keys; L takes the place of Q
    if (warp < 2) write_factors(a, chunk, sum, shrinks, factors(), total(), forgetting);
    write_triangle(triangle(), kk, factors(), warp, lane);
  }
  /// From Q, K and the gates for the first head of a group: P, the norms, the factors, L.
  __device__ void take_tiles(int head, const RawGates& gates, float* forgetting, unsigned warp,
                             unsigned lane) const {
    float kk[32], sum;
    bool shrinks = false;
    {
      sum = start_keys(kk, head, gates, shrinks, warp);
      std::uint32_t q[steps][4];
      float qk[32], squares[2];
      read_queries(q, squares, warp, lane);
      write_norms(factor_query_norm, squares, warp, lane);
      __syncwarp();  // this warp's rows
      clear(qk);
      hold(qk);
      products_begin();
      multiply<E, Tile::by_rows>(qk, q, at(L::k), true);
      products_commit();
      products_wait<0>();
      hold(kk), hold(qk);
      const float* const own = factor(factor_query_norm) + 16 * warp + lane / 4;
      write_p<E>(at(L::p), qk, {own[0], own[8]}, warp, lane);
    }
    float squares[2];
    take_diagonal(squares, kk, warp, lane);
    write_norms(factor_key_norm, squares, warp, lane);
    take_keys(kk, sum, shrinks, forgetting, warp, lane);
  }
  /// The same for another head: the gates, and L. K K^T is made again: cheaper than registers that hold it.
  __device__ void take_head(int head, const RawGates& gates, float* forgetting, unsigned warp,
                            unsigned lane) const {
    float kk[32];
    bool shrinks = false;
    const float sum = start_keys(kk, head, gates, shrinks, warp);
    products_wait<0>();
    hold(kk);
    take_keys(kk, sum, shrinks, forgetting, warp, lane);
  }
  /// A to its two tiles, rows times the norms of the keys; without those to device memory, for the backward pass.
  __device__ void take_inverse(std::int64_t chunk_head) const {
    invert_unit_lower(triangle(), threadIdx.x / 32);
    __syncthreads();
    unsigned thread = threadIdx.x;
    forget(thread);
    InverseRow row;
    row.read(triangle(), thread);
    if (a.inverse != nullptr) {
      char* const to = static_cast<char*>(a.inverse) + chunk_head * 2 * panel_bytes;
      row.template split<E>(thread, 1.0f, [&](int offset, uint4 high, uint4 low) {
        *reinterpret_cast<uint4*>(to + offset) = high;
        *reinterpret_cast<uint4*>(to + panel_bytes + offset) = low;
      });
    }
    __syncthreads();
    row.template split<E>(thread, factor(factor_key_norm)[InverseRow::row(thread)],
                          [&](int offset, uint4 high, uint4 low) {
                            store_shared16(at(L::high) + offset, high);
                            store_shared16(at(L::low) + offset, low);
                          });
    fence_async_proxy();
    __syncthreads();
  }
  /// R and X to their tiles, and from there to device memory.
  __device__ void make_results(std::int64_t chunk_head, unsigned warp, unsigned lane) const {
    forget(lane);
    const float* const decay = factor(factor_decay);
    std::uint32_t rounded[steps][4];
    {
      float pa[32], x[padded_k / 2];
      {
        std::uint32_t p[4][4];
#pragma unroll
        for (int s = 0; s < 4; ++s) load_a(p[s], at(L::p), 16 * warp, 16 * s);
        clear(pa);
        add_all(pa, [&] {
          multiply<E, Tile::by_columns>(pa, p, at(L::high), true);
          multiply<E, Tile::by_columns>(pa, p, at(L::low), true);
        });
      }
      clear(x);
      hold(x);
      products_begin();
      multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(x, at(L::high), at(L::k), true);
      multiply_tiles<E, Tile::by_columns, Tile::by_columns, 4>(x, at(L::low), at(L::k), true);
      products_commit();
      write_r<E>(at(L::r), pa, decay, a.activations.scale, warp, lane);
      const float last = decay[63], *const own = decay + 16 * warp + lane / 4;
      const float c[2] = {exp2_fast(last - own[0]), exp2_fast(last - own[8])};
      products_wait<0>();
      hold(x);
      scale_rows(x, c);
      as_operand<E>(rounded, x);
    }
    fence_async_proxy();
    __syncthreads();  // X takes the place of A
    store_first(chunk_head);
#pragma unroll
    for (int s = 0; s < steps; ++s) store_a(at(L::q), 16 * warp, 16 * s, rounded[s]);
    fence_async_proxy();
    __syncthreads();
    store_second(chunk_head);
  }
  /// R and the factors to device memory.
  __device__ void store_first(std::int64_t chunk_head) const {
    char* const r = static_cast<char*>(a.r) + chunk_head * panel_bytes;
    float* const numbers = a.factors + chunk_head * factor_rows * 64;
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) {
      store_bulk(r, at(L::r), panel_bytes);
      store_bulk(numbers, at(L::factors), factor_rows * 256);
    }
#else
    store_image<panel_bytes, threads>(r, at(L::r), threadIdx.x);
    for (int i = threadIdx.x; i < factor_rows * 16; i += threads) {
      reinterpret_cast<float4*>(numbers)[i] = reinterpret_cast<const float4*>(factors())[i];
    }
#endif
  }
  /// X; all places are free afterwards, for this thread.
  __device__ void store_second(std::int64_t chunk_head) const {
    char* const x = static_cast<char*>(a.x) + chunk_head * padded_k * 128;
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) {
      store_bulk(x, at(L::q), padded_k * 128);
      bulk_stores_wait_read();
    }
#else
    store_image<padded_k * 128, threads>(x, at(L::q), threadIdx.x);
#endif
  }
};

/// What a kernel is for. Most often key heads have one value head, and what a loop over heads keeps would take registers from
/// products. `common`: see is_common.
enum class Case { common, single, grouped };

/// Whether whole chunks of normalised rows with one value head a key head and plain gates are all that there is. The kernel
/// for them has nothing to jump over: code comes from memory when a grid begins, and in sequence it comes faster.
template <int padded_k>
bool is_common(const GdnPrepare& a) {
  const Activations& x = a.activations;
  return a.use_maps && a.chunks.all_whole() && a.key_dim == padded_k && a.group == 1 && x.l2_norm &&
         x.plain_gates();
}
/// Tells the compiler what it need not ask.
template <int padded_k>
__device__ __forceinline__ GdnPrepare know_common(GdnPrepare a) {
  Activations& x = a.activations;
  a.use_maps = true, a.chunks.cu_seqlens = nullptr, a.chunks.table = nullptr;
  a.key_dim = padded_k, a.group = 1, a.value_heads = a.key_heads;
  x.l2_norm = true, x.gate = Gate::log_decay, x.beta = Beta::plain, x.a_log = x.dt_bias = nullptr;
  return a;
}

template <class E, int padded_k, Case which>
__global__ void __launch_bounds__(threads, blocks_together)
    gdn_prepare(const __grid_constant__ GdnPrepare arguments, const __grid_constant__ TileMaps maps) {
  constexpr bool common = which == Case::common, grouped = which == Case::grouped;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  GdnPrepare known;
  if (common) known = know_common<padded_k>(arguments);
  const GdnPrepare& a = common ? known : arguments;
  Task task = a.chunks.task(blockIdx.x, a.by_key_heads, true);
  if (common) task.chunk.rows = chunk_rows;
  if (task.chunk.rows == 0) return;
  if (common) __builtin_assume(warp < threads / 32);
  const Block<E, padded_k> block{a, maps, memory, task.chunk};
  load_tiles<padded_k>(a, maps, task.chunk, task.head, block.at(0), block.barrier());

  int head = grouped ? task.head * a.group : task.head;
  std::int64_t chunk_head = task.slot * a.value_heads + head;
  RawGates gates = read_gates<E>(a, task.chunk, head);
  if (threadIdx.x < 64) prefetch_later_gates<E, common>(a);
  __syncthreads();  // the barrier of the copies is set up
  wait_tiles(a, task.chunk, block.barrier());
  dependency_launch();

  block.take_tiles(head, gates, a.forgetting + chunk_head, warp, lane);
  for (int left = grouped ? a.group - 1 : 0;; --left) {
    if (left > 0) gates = read_gates<E>(a, task.chunk, head + 1);
    block.take_inverse(chunk_head);
    block.make_results(chunk_head, warp, lane);
    if (left == 0) break;
    __syncthreads();
    ++head, ++chunk_head;
    block.take_head(head, gates, a.forgetting + chunk_head, warp, lane);
  }
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn_prepare(const GdnPrepare& arguments, const TileMaps& maps, cudaStream_t stream) {
  const auto kernel = is_common<padded_k>(arguments) ? gdn_prepare<E, padded_k, Case::common>
                      : arguments.group == 1         ? gdn_prepare<E, padded_k, Case::single>
                                                     : gdn_prepare<E, padded_k, Case::grouped>;
  return launch(kernel, arguments.chunks.grid(arguments.key_heads), threads, Layout<padded_k>::bytes,
                Start::after_previous, stream, arguments, maps);
}

template cudaError_t launch_gdn_prepare<Bf16, 64>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Bf16, 128>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Half, 64>(const GdnPrepare&, const TileMaps&, cudaStream_t);
template cudaError_t launch_gdn_prepare<Half, 128>(const GdnPrepare&, const TileMaps&, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
