// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2_prepare.cuh"

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_prepare_end.cuh"
#include "recurrence/cuda/gdn2_prepare_spans.cuh"
#include "recurrence/cuda/launch.hpp"

namespace deltaport::recurrence::cuda {
namespace {

/// One block's part: a chunk and a gate head.
template <class E, int padded_k>
struct Block : Gdn2PrepareEnd<E, padded_k> {
  using Input = Gdn2PrepareEnd<E, padded_k>;
  using L = Gdn2Layout<padded_k>;
  using Own = Octet<padded_k>;
  using Products = OctetProducts<padded_k>;
  using Input::a, Input::memory, Input::chunk, Input::image, Input::address, Input::threads;
  static constexpr int steps = padded_k / 16, groups = threads / 128;

  std::int64_t slot;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }
  __device__ RowScale* rows() const { return part<RowScale>(L::rows); }
  __device__ uint2 take(int tile, std::uint32_t at) const { return *part<uint2>(tile + at); }
  __device__ void put(int tile, std::uint32_t at, uint2 x) const { *part<uint2>(tile + at) = x; }

  /// The norms of an octet's rows, by its warp: diagonals of the products of k and of q with both.
  __device__ void write_rows(const Products& products, unsigned octet) const {
    float with_k[4], with_q[4], k_sums[2][4] = {}, q_sums[2][4] = {};  // two that do not wait for each other
    const std::uint32_t from = products.pair(L::k, L::q, octet);
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      std::uint32_t x[4];
      load_matrices(x, Products::pair_step(from, s));
      multiply_add<E>(k_sums[s % 2], x, x[0], x[2]);
      multiply_add<E>(q_sums[s % 2], x, x[1], x[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      with_k[i] = k_sums[0][i] + k_sums[1][i], with_q[i] = q_sums[0][i] + q_sums[1][i];
    const unsigned lane = threadIdx.x % 32, i = lane / 4;
    if (lane % 4 != i / 2) return;
    const bool odd = i % 2 == 1, unit = a.activations.l2_norm;
    const float key = rsqrtf((odd ? with_k[1] : with_k[0]) + 1e-6f),
                query = rsqrtf((odd ? with_q[3] : with_q[2]) + 1e-6f);
    rows()[octet_rows * octet + i] = {key, query, unit ? 1.0f : 1.0f / key, unit ? 1.0f : 1.0f / query};
    part<float>(L::diagonal)[octet_rows * octet + i] = odd ? with_k[3] : with_k[2];
  }

  /// Element i of P's diagonal, and numbers of row i.
  __device__ void put_diagonal(int i) const {
    const RowScale row = rows()[i];
    *part<Half>(L::p + element_offset(i, i)) =
        static_cast<Half>(part<float>(L::diagonal)[i] * row.query * row.key);
    part<float>(L::key_back)[i] = row.key_back;
    if (a.norms != nullptr) {
      a.norms[(2 * image) * 64 + i] = row.query;
      a.norms[(2 * image + 1) * 64 + i] = row.key;
    }
  }

  /// Row i of an image in device memory, whose row 0 lies at `to` for this thread: Octet::at in fewer instructions, since
  /// images are aligned as tiles are.
  __device__ static void store_row(std::uint64_t to, int i, uint2 x) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"((to ^ (i * 16u)) + i * 128u), "r"(x.x), "r"(x.y)
                 : "memory");
  }

  /// K~ and Q~ to device memory; the rows of length 1; span 1 of L and P.
  template <bool plain, bool unit>
  __device__ void take_rows(OctetRows& x, const Own& own, const float4 (&decay)[octet_rows],
                            float4 before) const {
    const std::uint64_t erase_to = reinterpret_cast<std::uint64_t>(a.erase) + image * L::tile + own.first,
                        query_to = reinterpret_cast<std::uint64_t>(a.query) + image * L::tile + own.first;
    struct Row {
      uint2 k, q, b;
      float4 scale;
    };
    const auto read = [&](int i) {
      const std::uint32_t at = own.at(i);
      return Row{take(L::k, at), take(L::q, at), take(L::b, at),
                 *reinterpret_cast<const float4*>(rows() + octet_rows * own.octet + i)};
    };
    float4 erase = before, key_before;
    float near[octet_rows / 2];
    const bool upper_lane = threadIdx.x & Own::threads / 2;
    Row next = read(0);
#pragma unroll
    for (int i = 0; i < octet_rows; ++i) {
      const Row row = next;
      if (i < octet_rows - 1)
        next = read(i + 1);  // the compiler would not move it over what is written below
      const std::uint32_t at = own.at(i);
      const float4 key = unpack<E>(row.k) * row.scale.x, query = unpack<E>(row.q) * row.scale.y,
                   gate = unpack<E>(row.b),
                   both = (plain ? gate : erase_gate(a.activations.beta, gate)) * key;
      const uint2 k = pack<Half>(key);
      if (i < keys_in_tile) {
        put(L::k, at, k);
      } else {
        x.k[i] = k;
      }
      x.q[i] = pack<Half>(query), x.b[i] = pack<Half>(both);
      if (i > 0) erase = erase * decay[i];
      float4 erased = both * erase, asked = query * (erase * a.activations.scale);
      if (!unit) erased = erased * row.scale.z, asked = asked * row.scale.w;
      store_row(erase_to, i, pack<E>(erased));
      store_row(query_to, i, pack<E>(asked));
      if (i % 2 == 1) {
        const float4 other = key_before * decay[i];
        const float of_b = dot(both, other), of_q = dot(query, other);
        near[i / 2] = (upper_lane ? of_q : of_b) +
                      __shfl_xor_sync(0xffffffffu, upper_lane ? of_b : of_q, Own::threads / 2);
      }
      key_before = key;
    }
    put_near(own, near);
  }
  __device__ static float dot(float4 x, float4 y) {
    return x.x * y.x + x.y * y.y + (x.z * y.z + x.w * y.w);
  }
  /// near[n]: a lane's part of row 2 n + 1 times row 2 n, of L on the lower half of the octet's lanes, else of P.
  __device__ void put_near(const Own& own, const float (&near)[octet_rows / 2]) const {
    constexpr unsigned by_two = Own::threads / 4, by_one = Own::threads / 8;
    const bool two = threadIdx.x & by_two, one = threadIdx.x & by_one;
    const auto half = [](bool upper, float x, float y, unsigned step) {
      return (upper ? y : x) + __shfl_xor_sync(0xffffffffu, upper ? x : y, step);
    };
    float sum = half(one, half(two, near[0], near[2], by_two), half(two, near[1], near[3], by_two), by_one);
#pragma unroll
    for (unsigned step = by_one / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const unsigned j = octet_rows * own.octet + (two ? 4 : 0) + (one ? 2 : 0);
    if (threadIdx.x % by_one == 0)
      Gdn2Spans<padded_k>{memory}.put_product(threadIdx.x & Own::threads / 2, j + 1, j, sum);
  }

  /// L and P in shared memory, K^ in the place of k; K~, Q~ and gamma in device memory.
  __device__ void triangles(int warp) const {
    const Own own = Own::own(warp, threadIdx.x % 32);
    constexpr int fours = padded_k / 4;
    float4* const first = part<float4>(L::edges) + own.channel / 4;
    typename Input::template Gates<octet_rows> gates;
    this->read_gates(gates, own.channel, octet_rows * own.octet);
    float4 decay[octet_rows];
    this->take_gates(decay, gates, own.channel, octet_rows * own.octet);
#pragma unroll
    for (int i = 0; i < octet_rows; ++i) {
      decay[i] = {exp2_fast(decay[i].x), exp2_fast(decay[i].y), exp2_fast(decay[i].z), exp2_fast(decay[i].w)};
    }
    first[own.octet * fours] = decay[0];
    // Not in pairs that multiply_small makes too: the compiler would keep them.
    const float4 rest = decay[1] * decay[3] * (decay[2] * decay[4]) * (decay[5] * decay[7] * decay[6]);
    first[(octets + own.octet) * fours] = rest;
    first[(2 * octets + own.octet) * fours] = decay[0] * rest;
    __syncthreads();  // for the tiles' barrier too
    const OctetFactors f =
        octet_factors<fours>(first, first + octets * fours, first + 2 * octets * fours, own.octet);
    if (own.octet == 0) {
      *reinterpret_cast<float4*>(a.gamma + image * padded_k + own.channel) =
          f.after * first[0] * first[octets * fours];
    }
    // Kept here: registers are scarce.
    uint2* const kept = part<uint2>(L::kept) + threadIdx.x;
    kept[0] = f.to8, kept[threads] = f.to16, kept[2 * threads] = f.to32,
    kept[3 * threads] = pack<Half>(f.after);
    this->wait_tiles();  // they come later than the gates
    dependency_launch();
    const Products products(memory);
#pragma unroll
    for (unsigned n = 0; n < Own::per_warp; ++n) write_rows(products, warp * Own::per_warp + n);
    this->wait_b();
    __syncwarp();
    OctetRows x;
    const Own own_rows = Own::own(warp, lane_again());
    if (!a.activations.l2_norm) {
      take_rows<false, false>(x, own_rows, decay, f.before);
    } else if (a.activations.beta == Beta::plain) {
      take_rows<true, true>(x, own_rows, decay, f.before);
    } else {
      take_rows<false, true>(x, own_rows, decay, f.before);
    }
    const Gdn2Spans<padded_k> spans{memory};
    spans.multiply_small(x, decay, warp);
    spans.multiply_pairs(x, kept[0], warp);
    __syncthreads();  // the operands' places are free
    if (groups == 1 && threadIdx.x < 64) put_diagonal(threadIdx.x);
    const Own again = Own::own(warp, threadIdx.x - 32 * warp);
    spans.stage_joins(again, x, kept[2 * threads], kept[threads]);
    spans.restore(again, x, kept[3 * threads]);
    fence_async_proxy();
    __syncthreads();
    if (warp >= 4 * (groups - 1)) spans.multiply_joins(warp);
    // Beside them, where there are eight warps. The diagonal blocks of L are there, if their rows have length 1.
    if (a.activations.l2_norm && warp < 4) {
      invert_diagonal_block(part<float>(L::triangle) + 16 * warp * (triangle_pitch + 1));
    }
    __syncthreads();
  }
  /// From rows of length 1 to rows as they count.
  __device__ void scale_triangle() const {
    float* const triangle = part<float>(L::triangle);
    for (unsigned at = threadIdx.x; at < 64 * 64; at += threads) {
      const unsigned i = at / 64, j = at % 64;
      if (j < i) triangle[i * triangle_pitch + j] *= rows()[i].key_back * rows()[j].key_back;
    }
    __syncthreads();
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

  /// A warp's 16 rows of a panel to the same place of an image in device memory.
  __device__ void store_own_rows(void* image_panel, int panel, int row_block) const {
    __syncwarp();
    const int first = row_block * (16 * 128) + static_cast<int>(threadIdx.x % 32) * 16;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int at = first + n * 512;
      *reinterpret_cast<uint4*>(static_cast<char*>(image_panel) + at) = load_shared16(address(panel + at));
    }
  }

  /// A, X and R, once L and P are in shared memory.
  __device__ void solve(int warp) const {
    float* const triangle = part<float>(L::triangle);
    if (!a.activations.l2_norm) {
      scale_triangle();
      if (warp < 4) invert_diagonal_block(triangle + 16 * warp * (triangle_pitch + 1));
      __syncthreads();
    }
    if (warp < 4) join_blocks(triangle, warp);
    if (groups > 1 && threadIdx.x >= 128 && threadIdx.x < 128 + 64) put_diagonal(threadIdx.x - 128);
    __syncthreads();
    // Both parts of A as halves: the last four warps round what is there, the first four what they make.
    if (warp >= 4 * (groups - 1)) this->put_joined(warp % 4);
    if (warp < 4) this->put_lower_left(warp);
    fence_async_proxy();
    __syncthreads();
    const int group = warp / 4, row = warp % 4;  // 128 threads make 64 columns of X, the last ones R too
    const std::uint32_t restored = address(L::k) + group * panel_bytes;
    float x[32];
    const auto start_x = [&] {
      multiply_tiles<Half, Tile::by_columns, Tile::by_columns, 4>(x, address(L::high), restored, false);
      multiply_tiles<Half, Tile::by_columns, Tile::by_columns, 4>(x, address(L::low), restored, true);
      products_commit();
    };
    const auto finish_x = [&] {
      if (a.inverse != nullptr) {  // for the backward pass, without the rows' lengths
        char* const to = static_cast<char*>(a.inverse) + image * 2 * panel_bytes;
        typename Input::InversePart inverse;
        this->read_inverse(inverse, warp);
        this->put_inverse(to, to + panel_bytes, inverse);
      }
      products_wait<0>();
      hold(x);
      const int panel = group * panel_bytes;
      write_tile(L::joint + panel, x, {1.0f, 1.0f}, row);
      store_own_rows(static_cast<char*>(a.x) + image * L::tile + panel, L::joint + panel, row);
    };
    if (group == groups - 1) {
      std::uint32_t p[4][4];
      float r[32];
      take_p(p, row);
      hold(r), hold(x);
      products_begin();
      multiply<Half, Tile::by_columns>(r, p, address(L::high), false);
      multiply<Half, Tile::by_columns>(r, p, address(L::low), true);
      products_commit();
      start_x();
      products_wait<1>();
      hold(r);
      const RowScale* const own = rows() + 16 * row + threadIdx.x % 32 / 4;
      const float factor[2] = {a.activations.scale * own[0].query_back,
                               a.activations.scale * own[8].query_back};
      write_tile(L::p, r, factor, row);  // this warp's rows of P are read
      store_own_rows(static_cast<char*>(a.r) + image * panel_bytes, L::p, row);
      finish_x();
    } else {
      hold(x);
      products_begin();
      start_x();
      finish_x();
    }
    if (decides(a.segments, a.chunks, slot)) this->note_forgetting(warp);
  }
};

/// Whether whole chunks of normalised rows and plain gates are all that there is. The kernel for them has nothing to jump
/// over: code comes from memory when a grid begins, and in sequence it comes faster.
template <int padded_k>
bool is_common(const Gdn2Prepare& a) {
  const Activations& x = a.activations;
  return a.use_maps && a.chunks.all_whole() && a.key_dim == padded_k && x.l2_norm && x.plain_gates();
}
/// Tells the compiler what it need not ask.
template <int padded_k>
__device__ __forceinline__ Gdn2Prepare know_common(Gdn2Prepare a) {
  Activations& x = a.activations;
  a.use_maps = true, a.chunks.cu_seqlens = nullptr, a.key_dim = padded_k;
  x.l2_norm = true, x.gate = Gate::log_decay, x.beta = Beta::plain;
  return a;
}

/// `group`: gate heads of a key head. `common`: see is_common.
template <class E, int padded_k, bool common>
__global__ void __launch_bounds__(2 * padded_k, 2)
    gdn2_prepare(const __grid_constant__ Gdn2Prepare arguments, const __grid_constant__ Gdn2PrepareMaps maps,
                 const Divisor heads, const Divisor group) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Gdn2Prepare known;
  if (common) known = know_common<padded_k>(arguments);
  const Gdn2Prepare& a = common ? known : arguments;
  Task task = a.chunks.task(blockIdx.x, heads, true);
  if (common) task.chunk.rows = chunk_rows;
  if (task.chunk.rows == 0) return;
  const int head = task.head, key_head = static_cast<int>(group.quotient(task.head));
  const Block<E, padded_k> block{
      {{a, maps, memory, task.chunk, head, key_head, task.slot * a.gate_heads + head, 0}}, task.slot};
  if (threadIdx.x == 0) {
    barrier_init(block.barrier(), 1), barrier_init(block.barrier() + 1, 1);
    fence_async_proxy();
  }
  __syncwarp();
  block.template load_tiles<true>();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // uniform over the warp
  // Said only where it helps: registers are scarce.
  if (common) __builtin_assume(warp >= 0 && warp < Block<E, padded_k>::threads / 32);
  block.triangles(warp);
  block.solve(warp);
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn2_prepare(const Gdn2Prepare& arguments, const Gdn2PrepareMaps& maps,
                                cudaStream_t stream) {
  const Divisor group(arguments.gate_heads / arguments.key_heads);
  const auto kernel =
      is_common<padded_k>(arguments) ? gdn2_prepare<E, padded_k, true> : gdn2_prepare<E, padded_k, false>;
  return launch(kernel, arguments.chunks.grid(arguments.gate_heads), 2 * padded_k,
                Gdn2Layout<padded_k>::bytes, Start::after_previous, stream, arguments, maps,
                Divisor(arguments.gate_heads), group);
}

template cudaError_t launch_gdn2_prepare<Bf16, 64>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);
template cudaError_t launch_gdn2_prepare<Bf16, 128>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);
template cudaError_t launch_gdn2_prepare<Half, 64>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);
template cudaError_t launch_gdn2_prepare<Half, 128>(const Gdn2Prepare&, const Gdn2PrepareMaps&, cudaStream_t);

}  // namespace deltaport::recurrence::cuda
