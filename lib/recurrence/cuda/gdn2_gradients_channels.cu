// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/gdn2_gradients.cuh"
#include "recurrence/cuda/gdn2_gradients_end.cuh"
#include "recurrence/cuda/gdn2_gradients_levels.cuh"
#include "recurrence/cuda/launch.hpp"

namespace deltaport::recurrence::cuda {
namespace {

/// `common`: see is_common.
template <class E, int padded_k, bool common>
struct Block : Gdn2ChannelsEnd<E, padded_k> {
  using Input = Gdn2ChannelsEnd<E, padded_k>;
  using L = Gdn2ChannelsLayout;
  using Input::activations, Input::address, Input::arguments, Input::chunk, Input::head, Input::image,
      Input::key_head, Input::member, Input::members, Input::memory, Input::slot, Input::threads,
      Input::first_channel;
  static constexpr int steps = padded_k / 16, blocks = padded_k / L::channels;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }

  /// Where a lane is at work: rows 2 (lane % 4) + {0, 1} and 8 more of the warp's strip, channels lane / 4 and 8 more of
  /// the 16 at hand.
  struct Place {
    unsigned strip, first_row, channel;
    std::uint32_t tiles;  // see LevelGradients
    LaneNotes notes;
    std::uint32_t sums;  // see float_offset: of the first 8 channels
    std::size_t far;     // byte offset in the first kernel's fragments
  };
  __device__ Place place(unsigned warp) const {
    const unsigned lane = threadIdx.x % 32, strip = warp / L::parts,
                   first = gradient_channels * (warp % L::parts), row = strip_rows * strip + 2 * (lane % 4);
    return {strip,
            row,
            first + lane / 4,
            address(0) + strip * (strip_rows * 128) + (columns_first() ^ 2 * first),
            LaneNotes::make(),
            address(0) + float_offset(row, first + lane / 4),
            static_cast<std::size_t>(image) * (padded_k * 128) +
                (strip * steps + first_channel / 16 + first / 16) * 512 + 16 * lane};
  }
  /// For the next 16 channels.
  __device__ static void advance(Place& at) {
    at.channel += 16, at.tiles ^= 32, at.sums ^= 32, at.far += 512;
  }
  /// Four floats to rows first_row and the next, channels channel and channel + 8; `n`: from 8 rows later.
  __device__ static void store_floats(const Place& at, int tiles, unsigned n, const float* x) {
    const std::uint32_t to = tiles + n * 1024;
    store_shared8(at.sums + to, {__float_as_uint(x[0]), __float_as_uint(x[1])});
    store_shared8((at.sums ^ 16) + L::tile + to, {__float_as_uint(x[2]), __float_as_uint(x[3])});
  }

  /// What the first kernel leaves for 16 channels; loaded ahead of its use.
  struct Far {
    uint4 d_query, d_erase, d_restored;
  };
  __device__ Far load_far(std::size_t at) const {
    const auto fragment = [&](const void* of) {
      return *reinterpret_cast<const uint4*>(static_cast<const char*>(of) + at);
    };
    const Gdn2Between& between = arguments.between;
    return {fragment(between.d_query), fragment(between.d_erase), fragment(between.d_restored)};
  }
  /// Sums of q dq and k dk of a lane's rows, 2 n + e.
  struct Dots {
    float q[4], k[4];
  };

  /// Everything of 16 channels but what needs other channels or strips: sums.u becomes dq and sums.m dk, both before the
  /// norm; db goes to its tile, dG to its place.
  __device__ void gradients(const Place& at, float undo, Dots& dots) const {
    LevelSums sums;
    const std::uint32_t block = address(L::scores) + score_block(0, at.strip, at.strip);
    const LevelGradients levels{
        at.tiles, block + at.notes.rows(), block + at.notes.columns(), at.notes, at.strip, sums};
    Fragment k, q, erase;
    levels.load(k, L::k);
    levels.load(q, L::q);
    levels.load(erase, L::erase);
    levels.inside(k, q, erase, L::levels);
    const Far far = load_far(at.far);
    Fragment upper, lower;
    levels.load(upper, L::upper);
    levels.load(lower, L::lower);
    const float2* const ends = part<float2>(L::ends) + at.strip * L::channels + at.channel;
    if (at.strip % 2 == 1) {
      levels.template from_lower<1>(at.strip ^ 1, upper, L::k, L::lower, {});
    } else {
      levels.template from_upper<1>(at.strip ^ 1, lower, k, L::q, L::erase, L::upper, {});
    }
    if (at.strip >= 2) {
      LevelGradients::Outer outer;
#pragma unroll
      for (unsigned c = 0; c < 2; ++c) {
        outer.other[c] = part<float>(L::second)[at.channel + 8 * c];
        outer.own[c] = at.strip == 3 ? ends[8 * c].y : 1.0f;
      }
      levels.template from_lower<2>(0, upper, L::k, L::lower, outer);
    } else {
      LevelGradients::Outer outer;
#pragma unroll
      for (unsigned c = 0; c < 2; ++c) {
        outer.other[c] = part<float2>(L::ends)[3 * L::channels + at.channel + 8 * c].y;
        outer.own[c] = at.strip == 0 ? part<float>(L::second)[at.channel + 8 * c] : 1.0f;
      }
      levels.template from_upper<2>(2, lower, k, L::q, L::erase, L::upper, outer);
    }
    float before_strip[2], after_strip[2];
#pragma unroll
    for (unsigned c = 0; c < 2; ++c) {
      const float2 end = ends[8 * c];
      before_strip[c] = end.x, after_strip[c] = at.strip == 3 ? 1.0f : end.y;
    }

    Fragment b, odd, unit;
    levels.load(b, L::b);
    levels.load(odd, L::levels + 3 * L::tile);
    load_matrices(unit, address(L::unit) + at.notes.unit());
    float far_q[8], far_b[8], far_k[8];
    transpose<E>(far_q, far.d_query, unit);
    transpose<E>(far_b, far.d_erase, unit);
    transpose<E>(far_k, far.d_restored, unit);
    const bool holds_last = at.strip == static_cast<unsigned>(chunk.rows - 1) / strip_rows;
    const unsigned x = threadIdx.x % 4;
    const unsigned scores = L::scores + score_block(0, at.strip, at.strip) + score_element(2 * x + 1, 2 * x);
    float through[2] = {};  // sums of k m' over the rows, of the lane's channels
#pragma unroll
    for (unsigned n = 0; n < 2; ++n) {
      float *const u = sums.u + 4 * n, *const t = sums.t + 4 * n, *const m = sums.m + 4 * n,
                   *const back = sums.back + 4 * n;
      float key[4], query[4], product[4], before[4], after[4];
      unpack_rows<Half>(key, k, n), unpack_rows<Half>(query, q, n);
      unpack_rows<Half>(product, erase, n);
      unpack_rows<Half>(before, upper, n), unpack_rows<Half>(after, lower, n);
      // What is rounded, and where, is said from here on: both versions of the kernel must give the same bits.
      // Span 1: the odd rows against the even ones.
      const unsigned char* const pair = memory + scores + 384 * n;  // score_element of 8 more
      const float p = __half2float(*reinterpret_cast<const Half*>(pair)),
                  l = __half2float(*reinterpret_cast<const Half*>(pair + score_bytes));
#pragma unroll
      for (unsigned j = 0; j < 4; j += 2) {
        const float decay = unpack<Half>(odd[2 * n + j / 2]).x, even = decay * key[j];
        u[j + 1] = __fmaf_rn(p, even, u[j + 1]);
        t[j + 1] = __fmaf_rn(l, even, t[j + 1]);
        const float sum = __fmaf_rn(l, product[j + 1], __fmul_rn(p, query[j + 1]));
        m[j] = __fmaf_rn(decay, sum, m[j]), back[j] = __fmaf_rn(even, sum, back[j]);
      }
      // dG takes only what a decay goes with: the rest would cancel but for roundings, and nothing be left of strong
      // decays. So it leaves out products of a row with itself, and what the last row gives the state.
      float d_product[4], last[4];
      const unsigned row = at.first_row + 8 * n;
      const auto of_rows = [&](int floats) {
        return *reinterpret_cast<const float2*>(part<float>(floats) + row);
      };
      float2 query_factor = {1.0f, 1.0f}, key_factor = {1.0f, 1.0f};
      if (!common) query_factor = of_rows(L::query_factors), key_factor = of_rows(L::key_factors);
      const float2 diagonal = of_rows(L::diagonal);
      const auto of = [](float2 x, unsigned j) { return j % 2 == 0 ? x.x : x.y; };
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        before[j] *= before_strip[j / 2], after[j] *= after_strip[j / 2];
        last[j] = __fmul_rn(of(key_factor, j), __fmul_rn(after[j], far_k[4 * n + j]));
        m[j] = __fmaf_rn(of(diagonal, j), query[j], __fmaf_rn(undo, m[j], last[j]));
      }
      if (holds_last) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          if (static_cast<int>(row + j % 2) == chunk.rows - 1) last[j] = 0.0f;
        }
      }
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const float d_query =
            __fmaf_rn(undo, u[j], __fmul_rn(of(query_factor, j), __fmul_rn(before[j], far_q[4 * n + j])));
        d_product[j] =
            __fmaf_rn(undo, t[j], __fmul_rn(of(key_factor, j), __fmul_rn(before[j], far_b[4 * n + j])));
        t[j] = __fmaf_rn(product[j], d_product[j], __fmul_rn(query[j], d_query));
        t[j] = __fmaf_rn(-key[j], last[j], __fmaf_rn(-undo, back[j], t[j]));
        through[j / 2] = __fmaf_rn(key[j], last[j], through[j / 2]);
        u[j] = __fmaf_rn(of(diagonal, j), key[j], d_query);
      }
      float gate[4], d_b[4];
      unpack_rows<E>(gate, b, n);
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) d_b[j] = d_product[j] * key[j];
      if (activations().beta != Beta::plain) {
        const float factor = activations().beta == Beta::sigmoid ? 1.0f : 2.0f;
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          const float s = sigmoid_fast(gate[j]);
          gate[j] = factor * s, d_b[j] *= gate[j] * (1.0f - s);
        }
      }
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) m[j] = __fmaf_rn(d_product[j], gate[j], m[j]);
      b[2 * n] = pack<E>(d_b[0], d_b[1]), b[2 * n + 1] = pack<E>(d_b[2], d_b[3]);
      if (members > 1) exchange(u, m, n, at);
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        dots.q[2 * n + j % 2] = __fmaf_rn(query[j], u[j], dots.q[2 * n + j % 2]);
        dots.k[2 * n + j % 2] = __fmaf_rn(key[j], m[j], dots.k[2 * n + j % 2]);
      }
      if (n == 0) __syncwarp();  // other lanes have read the tiles whose places these take
      store_floats(at, L::d_gate, n, t);
      store_floats(at, L::d_query, n, u);
      store_floats(at, L::d_key, n, m);
    }
    store_matrices_transposed(at.tiles + L::b, b);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      through[c] += __shfl_xor_sync(0xffffffffu, through[c], 1);
      through[c] += __shfl_xor_sync(0xffffffffu, through[c], 2);
    }
    if (x < 2) {
      float sum = x == 0 ? through[0] : through[1];
      // What the chunk leaves of the state before it belongs to all rows too.
      if (at.strip == 0) sum += part<float>(L::through_gamma)[at.channel + 8 * x];
      part<float>(L::decay_sums)[at.strip * L::channels + at.channel + 8 * x] = sum;
    }
  }
  /// Adds the sums of the gate heads before, which this thread has left, to the rows from 8 n; leaves them for the next.
  __device__ void exchange(float* u, float* m, unsigned n, const Place& at) const {
    std::int64_t place = slot;
    hide(place);  // or the address would be made where there is one member too
    const unsigned g = at.channel % gradient_channels / 16;
    float4* const to =
        reinterpret_cast<float4*>(arguments.sums) +
        (((place * arguments.input.key_heads + key_head) * blocks + first_channel / L::channels) * 8 + 4 * g +
         n) *
            threads +
        threadIdx.x;
    float4 &left = to[0], &right = to[2 * threads];
    if (member > 0) {
      const float4 x = left, y = right;
      u[0] += x.x, u[1] += x.y, u[2] += x.z, u[3] += x.w;
      m[0] += y.x, m[1] += y.y, m[2] += y.z, m[3] += y.w;
    }
    if (member + 1 < members) {
      left = make_float4(u[0], u[1], u[2], u[3]);
      right = make_float4(m[0], m[1], m[2], m[3]);
    }
  }
  /// Whether the block gets a part of the dots from another.
  __device__ bool meets() const {
    return blocks > 1 && activations().l2_norm;
  }
  /// By one thread.
  __device__ void expect_dots() const {
    barrier_init(this->barrier() + 1, 1);
#if defined(DELTAPORT_BULK_COPY)
    barrier_arrive_expect(this->barrier() + 1, threads * 4);
#endif
  }
  /// Over the warp's channels; each lane is left with one sum, which it gives to both blocks.
  __device__ void share_dots(const Dots& dots, unsigned warp, const Place& at) const {
    const unsigned lane = threadIdx.x % 32;
    const auto halve = [&](float a, float b, unsigned bit) {
      const bool second = (lane & bit) != 0;
      return (second ? b : a) + __shfl_xor_sync(0xffffffffu, second ? a : b, bit);
    };
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = halve(dots.q[i], dots.k[i], 16);
    const float sum = halve(halve(x[0], x[2], 8), halve(x[1], x[3], 8), 4);
    const unsigned row = at.first_row + (lane & 8) + lane / 4 % 2;
    const int offset = static_cast<int>(16 * row + 8 * (warp % L::parts) + 4 * (lane / 16));
    *part<float>(L::dots + offset) = sum;
    if constexpr (blocks > 1) {
      cluster_send(address(L::other_dots + offset), sum, this->barrier() + 1, cluster_rank() ^ 1);
    }
  }
  /// A thread at the end: 8 channels of two neighbouring rows.
  struct Unit {
    unsigned row, unit;
    __device__ int place(unsigned second) const {  // byte offset in a tile
      return static_cast<int>((row + second) * 128 + ((unit ^ (row % 8 + second)) << 4));
    }
  };
  __device__ static Unit own_unit() {
    const unsigned thread = thread_again();
    __builtin_assume(thread < threads);
    return {thread / 8 * 2, thread % 8};
  }
  /// To the first of the rows or the `second`, if it is there.
  __device__ void store_unit(void* tensor, int heads, int tensor_head, Unit own, unsigned second,
                             const uint4& x) const {
    const unsigned key_dim = arguments.input.key_dim, row = own.row + second;
    if (first_channel + 8 * own.unit >= key_dim || static_cast<int>(row) >= chunk.rows) return;
    // From the chunk's first row: 32 bits suffice.
    E* const to = static_cast<E*>(tensor) +
                  (static_cast<std::size_t>(chunk.row) * heads + tensor_head) * key_dim + first_channel;
    // By the function: an assignment would be split into four stores.
    __stwb(reinterpret_cast<uint4*>(to + row * heads * key_dim + 8 * own.unit), x);
  }
  __device__ void write_db(Unit own) const {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i)
      store_unit(arguments.db, arguments.input.gate_heads, head, own, i, *part<uint4>(L::b + own.place(i)));
  }
  /// Sums through the norm, of rows that are in tile `x`; scale and dot: of the two rows.
  __device__ void write_through_norm(void* tensor, Unit own, int sums, int x, const float (&scale)[2],
                                     const float (&dot)[2]) const {
    const int from = sums + static_cast<int>(float_offset(own.row, 8 * own.unit));
    float4 d[4];  // of two channels each: both rows of the first, both rows of the second
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = *part<float4>((from ^ i % 2 * 16) + i / 2 * 128);
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      const uint4 row = *part<uint4>(x + own.place(i));
      const auto one = [&](const float4& d, std::uint32_t x) {
        const float2 part = unpack<Half>(x);
        return pack<E>(scale[i] * ((i == 0 ? d.x : d.y) - dot[i] * part.x),
                       scale[i] * ((i == 0 ? d.z : d.w) - dot[i] * part.y));
      };
      store_unit(tensor, arguments.input.key_heads, key_head, own, i,
                 {one(d[0], row.x), one(d[1], row.y), one(d[2], row.z), one(d[3], row.w)});
    }
  }
  /// dq and dk, once the other block has sent its part of the dots.
  __device__ void write_keys(Unit own, bool norm) const {
    float query_dot[2] = {}, key_dot[2] = {};
    if (norm) {
      const auto add = [&](int from) {
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
          const float4 x = part<float4>(from)[own.row + i];
          query_dot[i] += x.x + x.z, key_dot[i] += x.y + x.w;
        }
      };
      add(L::dots);
      if constexpr (blocks > 1) {
        barrier_wait(this->barrier() + 1, 0);
        add(L::other_dots);
      }
    }
    const float2 *const norms = part<float2>(L::rows) + own.row / 2, query = norms[0], key = norms[32];
    write_through_norm(arguments.dq, own, L::d_query, L::q, {query.x, query.y}, query_dot);
    write_through_norm(arguments.dk, own, L::d_key, L::k, {key.x, key.y}, key_dot);
  }

  __device__ void run(unsigned warp) const {
    Place at;
    const typename Input::Gates gates = this->load(warp, [&](unsigned warp) { at = place(warp); });
    const float gamma = this->stage_gates(gates, warp);
    if (member == 0) {
      if (meets()) cluster_wait();  // the other block has begun; here nobody has to wait for it any more
      dependency_wait();            // for all threads: they read fragments
    }
    const float undo = this->stage_tiles(gamma, warp);
    Dots dots = {};
#pragma unroll 1  // the code stays in the instruction cache
    for (unsigned g = 0; g < gradient_groups; ++g) {
      if (g > 0) advance(at);
      gradients(at, undo, dots);
    }
    const bool last = member + 1 == members, norm = last && activations().l2_norm;
    if (norm) share_dots(dots, warp, at);
    __syncthreads();
    typename Input::Columns columns = this->sum_columns(warp);
    const Unit own = own_unit();
    write_db(own);
    __syncthreads();
    this->write_gates(columns, warp);
    if (last) write_keys(own, norm);
  }
};

/// `heads`: key heads; `group`: gate heads of a key head.
template <class E, int padded_k, bool common>
__global__ void __launch_bounds__(Gdn2ChannelsLayout::threads, 2)
    gdn2_channels(const __grid_constant__ Gdn2Channels arguments,
                  const __grid_constant__ Gdn2PrepareMaps maps, const Divisor heads, const int group) {
  using B = Block<E, padded_k, common>;
  extern __shared__ __align__(1024) unsigned char memory[];
  Gdn2Channels known;
  if (common) known = know_common<padded_k>(arguments);
  const Gdn2Channels& a = common ? known : arguments;
  Task task = a.input.chunks.task(blockIdx.x / B::blocks, heads, true);
  if (common) task.chunk.rows = chunk_rows;
  if (task.chunk.rows == 0) return;
  const int first_channel = static_cast<int>(blockIdx.x % B::blocks) * B::L::channels;
  const int members = common ? 1 : group;
  const unsigned warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // uniform over the warp
  __builtin_assume(warp < B::L::warps);
  for (int member = 0; member < members; ++member) {
    const int head = task.head * members + member;
    const std::int64_t image = task.slot * a.input.gate_heads + head;
    const B block{{{{a.input, maps, memory, task.chunk, head, task.head, image, first_channel},
                    a,
                    member,
                    members,
                    task.slot}}};
    if (member == 0) {
      if (threadIdx.x == 0) {
        barrier_init(block.barrier(), 2);  // tiles, and scores
        if (block.meets()) block.expect_dots();
        barriers_publish();
      }
      __syncwarp();
    } else {
      fence_async_proxy();  // the tiles' places are read, and filled again
      __syncthreads();
    }
    block.load_tiles();
    if (member == 0 && block.meets()) cluster_announce();  // waited for in run
    block.run(warp);
  }
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn2_channels(const Gdn2Channels& a, const Gdn2PrepareMaps& maps, cudaStream_t stream) {
  constexpr int blocks = Block<E, padded_k, true>::blocks;
  const dim3 grid(static_cast<unsigned>(a.input.chunks.slots() * a.input.key_heads * blocks));
  const auto kernel =
      is_common<padded_k>(a) ? gdn2_channels<E, padded_k, true> : gdn2_channels<E, padded_k, false>;
  return launch_clusters(blocks, kernel, grid, Gdn2ChannelsLayout::threads, Gdn2ChannelsLayout::bytes,
                         Start::beside_previous, stream, a, maps, Divisor(a.input.key_heads),
                         a.input.gate_heads / a.input.key_heads);
}

template cudaError_t launch_gdn2_channels<Bf16, 64>(const Gdn2Channels&, const Gdn2PrepareMaps&,
                                                    cudaStream_t);
template cudaError_t launch_gdn2_channels<Bf16, 128>(const Gdn2Channels&, const Gdn2PrepareMaps&,
                                                     cudaStream_t);
template cudaError_t launch_gdn2_channels<Half, 64>(const Gdn2Channels&, const Gdn2PrepareMaps&,
                                                    cudaStream_t);
template cudaError_t launch_gdn2_channels<Half, 128>(const Gdn2Channels&, const Gdn2PrepareMaps&,
                                                     cudaStream_t);

}  // namespace deltaport::recurrence::cuda
