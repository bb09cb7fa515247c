// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2_prepare.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_input.cuh"
#include "recurrence/cuda/wgmma.cuh"

namespace deltaport::recurrence::cuda {
namespace {

/// One block's part: a chunk and a gate head.
template <class E, int padded_k>
struct Block : Gdn2Input<E, padded_k> {
  using Input = Gdn2Input<E, padded_k>;
  using L = Gdn2Layout<padded_k>;
  using Input::a, Input::memory, Input::chunk, Input::image, Input::address, Input::threads, Input::warps;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }
  /// Diagonal of the products of the strip's rows of two tiles; true on the lanes that hold it (rows i and i + 8).
  template <class Operand>
  __device__ bool row_products(float (&result)[2], int left, int right, int strip) const {
    float d[2][4] = {};
#pragma unroll
    for (int s = 0; s < padded_k / 16; ++s) {
      std::uint32_t x[4], y[4];
      load_a(x, address(left), strip_rows * strip, 16 * s);
      load_b(y, address(right), strip_rows * strip, 16 * s);
      multiply_add<Operand>(d[0], x, y[0], y[1]);
      multiply_add<Operand>(d[1], x, y[2], y[3]);
    }
    const int i = threadIdx.x % 32 / 4;
    result[0] = i % 2 ? d[0][1] : d[0][0], result[1] = i % 2 ? d[1][3] : d[1][2];
    return i / 2 == static_cast<int>(threadIdx.x % 4);
  }
  /// The norms of a strip's rows, by its warps.
  __device__ void write_rows(int strip, int half) const {
    float products[2];
    const int i = strip_rows * strip + threadIdx.x % 32 / 4;
    RowScale* const rows = part<RowScale>(L::rows);
    const auto norms = [&](float RowScale::*scale, float RowScale::*back) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float norm = rsqrtf(products[n] + 1e-6f);
        rows[i + 8 * n].*scale = norm;
        rows[i + 8 * n].*back = a.activations.l2_norm ? 1.0f : 1.0f / norm;
      }
    };
    if (half == 0 && row_products<E>(products, L::k, L::k, strip)) norms(&RowScale::key, &RowScale::key_back);
    if (half == L::halves - 1) {
      if (row_products<E>(products, L::q, L::q, strip)) norms(&RowScale::query, &RowScale::query_back);
      if (row_products<E>(products, L::q, L::k, strip)) {
        part<float>(L::diagonal)[i] = products[0], part<float>(L::diagonal)[i + 8] = products[1];
      }
    }
  }

  /// element_offset in a tile of 64 columns.
  __device__ static unsigned p_offset(unsigned i, unsigned j) {
    return i * 128 + ((j / 8 ^ i % 8) * 16 | j % 8 * 2);
  }
  /// An element of L or P from the product of rows of length 1; P stays that of such rows.
  __device__ void put(bool query, unsigned i, unsigned j, float x) const {
    const RowScale* const rows = part<RowScale>(L::rows);
    if (query) {
      *part<Half>(L::p + p_offset(i, j)) = static_cast<Half>(x);
    } else {
      part<float>(L::triangle)[i * triangle_pitch + j] = x * rows[i].key_back * rows[j].key_back;
    }
  }
  __device__ void put_pair(bool query, unsigned i, unsigned j, float x, float y) const {
    const RowScale* const rows = part<RowScale>(L::rows);
    if (query) {
      *part<std::uint32_t>(L::p + p_offset(i, j)) = pack<Half>(x, y);
    } else {
      *reinterpret_cast<float2*>(part<float>(L::triangle) + i * triangle_pitch + j) =
          make_float2(x, y) * rows[i].key_back * make_float2(rows[j].key_back, rows[j + 1].key_back);
    }
  }
  /// The products of the spans 8 to 1, from both halves of the channels in this order.
  __device__ void put_levels(const float (&d)[4][4], unsigned strip, unsigned half) const {
    const unsigned lane = threadIdx.x % 32;
    if (half > 0) return;
#pragma unroll
    for (int level = 0; level < 4; ++level) {
      const unsigned span = 8u >> level, n = lane / 4;
      float4 other = {};
      if (L::halves > 1) other = part<float4>(L::partial)[(strip * 4 + level) * 32 + lane];
      const float key[2] = {d[level][0] + other.x, d[level][1] + other.y};
      const float query[2] = {d[level][2] + other.z, d[level][3] + other.w};
#pragma unroll
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned m = 2 * (lane % 4) + e;
        if (n / span != m / span) continue;  // rows of different blocks
        const unsigned i = strip_rows * strip + upper_row(n, span),
                       j = strip_rows * strip + lower_row(m, span);
        put(false, i, j, key[e]);
        put(true, i, j, query[e]);
      }
    }
  }
  /// By threads 0 to 63.
  __device__ void put_diagonal() const {
    const int i = threadIdx.x;
    const RowScale row = part<RowScale>(L::rows)[i];
    *part<Half>(L::p + element_offset(i, i)) =
        static_cast<Half>(part<float>(L::diagonal)[i] * row.query * row.key);
    part<float>(L::key_back)[i] = row.key_back;
    if (a.norms != nullptr) {
      a.norms[(2 * image) * 64 + i] = row.query;
      a.norms[(2 * image + 1) * 64 + i] = row.key;
    }
  }

  /// The lower triangle of P as a register operand; above the diagonal the tile holds nothing.
  __device__ void take_p(std::uint32_t (&p)[4][4], int warp) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      load_a(p[s], address(L::p), 16 * warp, 16 * s);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int i = 16 * warp + lane / 4 + 8 * (n % 2), j = 16 * s + 8 * (n / 2) + 2 * (lane % 4);
        p[s][n] = j + 1 <= i ? p[s][n] : j <= i ? p[s][n] & 0xffffu : 0u;
      }
    }
  }
  /// An accumulator of 64 x 64, rows times `factor` (rows i and i + 8), rounded to a tile.
  __device__ void write_tile(int tile, const float (&d)[32], const float (&factor)[2], int warp) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        x[n] = pack<E>(factor[n % 2] * d[8 * s + 2 * n], factor[n % 2] * d[8 * s + 2 * n + 1]);
      }
      store_a(address(tile), 16 * warp, 16 * s, x);
    }
  }
  /// A for the backward pass, rounded to E and what that left.
  __device__ void save_inverse() const {
    char* const to = static_cast<char*>(a.inverse) + image * 2 * panel_bytes;
    const float* const triangle = part<float>(L::triangle);
#pragma unroll
    for (int index = threadIdx.x; index < 64 * 32; index += threads) {
      const int i = index / 32, j = index % 32 * 2, row = i / 16, column = j / 16;
      const float* const from = column == row
                                    ? triangle + i * triangle_pitch + j
                                    : triangle + (16 * column + i % 16) * triangle_pitch + 16 * row + j % 16;
      const float2 x = column <= row ? *reinterpret_cast<const float2*>(from) : make_float2(0.0f, 0.0f);
      const std::uint32_t high = pack<E>(x.x, x.y);
      const float2 rounded = unpack<E>(high);
      *reinterpret_cast<std::uint32_t*>(to + element_offset(i, j)) = high;
      *reinterpret_cast<std::uint32_t*>(to + panel_bytes + element_offset(i, j)) =
          pack<E>(x.x - rounded.x, x.y - rounded.y);
    }
  }
  /// Whole images to device memory, by all threads after a barrier.
  template <int bytes>
  __device__ void store(void* tensor, int tile) const {
    char* const to = static_cast<char*>(tensor) + image * bytes;
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) store_bulk(to, address(tile), bytes);
#else
    store_image<bytes, threads>(to, address(tile), threadIdx.x);
#endif
  }

  /// L and P in shared memory, K~, Q~, K^ in the place of b, q and k; gamma.
  __device__ void triangles(int warp) const {
    const int lane = threadIdx.x % 32, half = warp % L::halves;
    const Strip own{
        memory, L::k, L::q, L::b, part<RowScale>(L::rows), warp / L::halves, 64 * half + 2 * lane};
    float2 decay[strip_rows];
    this->read_decays(decay, own);
    this->take_decays(decay, own);
    this->wait_tiles();
    dependency_launch();
    write_rows(own.strip, half);
    __syncthreads();
    normalise<E>(own, L::b, a.activations.beta, 0);
    normalise<E>(own, L::b, a.activations.beta, batch_rows);
    float levels[4][4];
    multiply_levels<8>(levels[0], levels[1], own, decay, L::scratch + warp * 2 * level_bytes);
    multiply_levels<2>(levels[2], levels[3], own, decay, L::scratch + warp * 2 * level_bytes);
    if (half > 0) {
#pragma unroll
      for (int level = 0; level < 4; ++level) {
        part<float4>(L::partial)[(own.strip * 4 + level) * 32 + lane] =
            make_float4(levels[level][0], levels[level][1], levels[level][2], levels[level][3]);
      }
    }
    __syncthreads();  // the levels' factors are free
    stage_joins(own, decay, this->factors(own), L::far, L::near);
    __syncthreads();
    JoinTask tasks[8 / warps];
#pragma unroll
    for (int t = 0; t < 8 / warps; ++t)
      tasks[t].template run<padded_k>(own, L::far, L::near, unsigned(t * warps + warp));
    __syncthreads();  // the factors are free for L and P, the rows for what becomes of them
#pragma unroll
    for (int t = 0; t < 8 / warps; ++t) {
      tasks[t].write(
          [&](bool query, unsigned i, unsigned j, float x, float y) { put_pair(query, i, j, x, y); });
    }
    put_levels(levels, own.strip, half);
    if (threadIdx.x < 64) put_diagonal();
    const StripFactors f = this->factors(own);  // again: cheaper than registers that hold it
    if (own.strip == 0) *reinterpret_cast<float2*>(a.gamma + image * padded_k + own.channel) = f.gamma;
    if (a.activations.l2_norm) {
      decay_rows<E, true>(own, decay, f, a.activations.scale);
    } else {
      decay_rows<E, false>(own, decay, f, a.activations.scale);
    }
    fence_async_proxy();
  }

  /// What the chunk leaves of the state, from X and K~ as the scan will read them. Their rows' norms multiply: a row of X
  /// carries the decay behind it, the same row of K~ that before it.
  __device__ void note_forgetting(int warp) const {
    const int strip = warp / L::halves, half = warp % L::halves, lane = threadIdx.x % 32;
    float *const x = part<float>(L::diagonal), *const erase = part<float>(L::key_back);
    const auto squares = [&](float* to, int tile) {
      float products[2];
      if (!row_products<E>(products, tile, tile, strip)) return;
      const int i = strip_rows * strip + lane / 4;
      to[i] = products[0], to[i + 8] = products[1];
    };
    if (half == 0) squares(x, L::k);
    if (half == L::halves - 1) squares(erase, L::b);
    __syncthreads();
    if (warp > 0) return;
    constexpr float tiny = 0x1p-120f;  // squares may have underflowed
    float sum = 0.0f, gamma = 0.0f;
    for (int i = lane; i < 64; i += 32) sum += sqrtf(x[i] + tiny) * sqrtf(erase[i] + tiny);
    constexpr int pairs = padded_k / 2;
    for (int pair = lane; pair < pairs; pair += 32) {
      float2 product = {1.0f, 1.0f};
      for (int s = 0; s < 8; ++s) product = product * part<float2>(L::edges)[s * pairs + pair];
      gamma = fmaxf(gamma, fmaxf(product.x, product.y));
    }
    sum = sum_warp(sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) gamma = fmaxf(gamma, __shfl_xor_sync(0xffffffffu, gamma, step));
    constexpr float roundings = 1.02f;  // of the state to an operand, and of these sums
    if (lane == 0) a.forgetting[image] = log2f(roundings * (sum + gamma));
  }

  /// A, X and R, once L and P are in shared memory.
  __device__ void solve(int warp) const {
    __syncthreads();
    store<L::tile>(a.erase, L::b);
    store<L::tile>(a.query, L::q);
    if (warp < 4) {
      invert_unit_lower(part<float>(L::triangle), warp);
    } else {  // the barriers inside
      __syncthreads();
      __syncthreads();
    }
    __syncthreads();
    if (warp < 4) {
      split_inverse<Half>(part<float>(L::triangle), part<float>(L::key_back), address(L::high),
                          address(L::low), threadIdx.x);
    }
    if (a.inverse != nullptr) save_inverse();
    fence_async_proxy();
    __syncthreads();
    const int group = warp / 4, row = warp % 4;  // 128 threads make 64 columns of X, the last ones R too
    std::uint32_t operand[2][4][4];
    float x[32];
    if (group == padded_k / 64 - 1) {
      take_p(operand[0], row);
      hold(x);
      products_begin();
      multiply<Half, Tile::by_columns>(x, operand[0], address(L::high), false);
      multiply<Half, Tile::by_columns>(x, operand[0], address(L::low), true);
      products_commit();
      products_wait<0>();
      hold(x);
      const RowScale* const rows = part<RowScale>(L::rows) + 16 * row + threadIdx.x % 32 / 4;
      const float factor[2] = {a.activations.scale * rows[0].query_back,
                               a.activations.scale * rows[8].query_back};
      write_tile(L::triangle, x, factor, row);
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      load_a_transposed(operand[0][s], address(L::high), 16 * s, 16 * row);
      load_a_transposed(operand[1][s], address(L::low), 16 * s, 16 * row);
    }
    const std::uint32_t restored = address(L::k) + group * panel_bytes;
    hold(x);
    products_begin();
    multiply<Half, Tile::by_columns>(x, operand[0], restored, false);
    multiply<Half, Tile::by_columns>(x, operand[1], restored, true);
    products_commit();
    products_wait<0>();
    hold(x);
    __syncthreads();  // X takes the place of K^
    write_tile(L::k + group * panel_bytes, x, {1.0f, 1.0f}, row);
    fence_async_proxy();
    __syncthreads();
    store<L::tile>(a.x, L::k);
    store<panel_bytes>(a.r, L::triangle);
    if (decides(a.segments, a.chunks, image / a.gate_heads)) note_forgetting(warp);
#if defined(DELTAPORT_BULK_COPY)
    if (threadIdx.x == 0) bulk_stores_wait_read();
#endif
  }
};

template <class E, int padded_k>
__global__ void __launch_bounds__(2 * padded_k, 2)
    gdn2_prepare(const Gdn2Prepare a, const __grid_constant__ Gdn2PrepareMaps maps) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::int64_t slot = a.chunks.in_time(blockIdx.x / a.gate_heads, true);
  const int head = blockIdx.x % a.gate_heads;
  const Chunk chunk = a.chunks.at(slot);
  if (chunk.rows == 0) return;
  const Block<E, padded_k> block{
      {a, maps, memory, chunk, head, head / (a.gate_heads / a.key_heads), slot * a.gate_heads + head, 0}};
  if (threadIdx.x == 0) barrier_init(block.barrier(), 1);
  __syncthreads();
  block.load_tiles();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // uniform over the warp
  block.triangles(warp);
  block.solve(warp);
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn2_prepare(const Gdn2Prepare& arguments, const Gdn2PrepareMaps& maps,
                                cudaStream_t stream) {
  constexpr int bytes = Gdn2Layout<padded_k>::bytes;
  const auto kernel = gdn2_prepare<E, padded_k>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(arguments.chunks.slots() * arguments.gate_heads));
  kernel<<<grid, 2 * padded_k, bytes, stream>>>(arguments, maps);
  return cudaGetLastError();
}

template cudaError_t launch_gdn2_prepare<Bf16, 64>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);
template cudaError_t launch_gdn2_prepare<Bf16, 128>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);
template cudaError_t launch_gdn2_prepare<Half, 64>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);
template cudaError_t launch_gdn2_prepare<Half, 128>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
