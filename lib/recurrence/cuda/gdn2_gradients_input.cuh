// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_gradients.cuh"
#include "recurrence/cuda/gdn2_gradients_levels.cuh"
#include "recurrence/cuda/gdn2_input.cuh"

/// The shared memory of a block of gdn2_channels, and what comes into it.
namespace deltaport::recurrence::cuda {

/// 64 channels a block: two blocks on a multiprocessor wait for different things.
struct Gdn2ChannelsLayout {
  static constexpr int channels = 64, threads = 256, warps = threads / 32;
  static constexpr int parts = channels / gradient_channels;  // of the channels, one per warp of a strip
  static constexpr int tile = channels * 128;
  static constexpr int k = 0, q = tile, b = 2 * tile;  // b: later db
  static constexpr int erase = 3 * tile;               // b o k
  // Factors of span 16: decays from a strip's first row to each, and from each to the first row of the next strip.
  static constexpr int upper = 4 * tile, lower = 5 * tile;
  static constexpr int d_gate = 6 * tile;  // dG in float, see float_offset
  static constexpr int scores = 8 * tile;  // dP, dL
  static constexpr int levels =
      scores + 2 * score_bytes;  // factors of the spans 8, 4 and 2; decays of odd rows
  static constexpr int level_places = 4 * tile;
  // Sums in float (see float_offset), which take the bytes of the same strip and 16 channels in two tiles of the levels,
  // read before by the same warp alone: dq and dk before the norm.
  static constexpr int d_query = levels, d_key = levels + 2 * tile;
  static constexpr int edges =
      d_gate;  // before: of every octet and two channels its first row's decay, the others'
  // Afterwards, where the warps meet: sums over 8 rows of dG, and of the gate's gradient; of every warp the rate's.
  static constexpr int row_sums = upper, bias_sums = row_sums + 8 * channels * 4,
                       rates = bias_sums + 8 * channels * 4;
  static_assert(rates + warps * 4 <= upper + 2 * tile);
  // Of every strip and channel: the decay from the chunk's beginning to the strip's first row, and from the next strip's
  // first row to the chunk's end; it is 1 for the last strip, which has `third` there.
  static constexpr int ends = levels + level_places;
  // From anchor to anchor: to the third strip's from the second's; `third`: to the fourth's.
  static constexpr int second = ends + 4 * channels * 8;
  // Of every strip and channel the sum over the rows of k m'; of every row and part q dq and k dk.
  static constexpr int decay_sums = second + channels * 4, dots = decay_sums + 4 * channels * 4;
  static constexpr int other_dots = dots + parts * 64 * 8;  // of the other channels' block, written by it
  // What a row's parts are multiplied with: dQ~; dK~ and dK^; k and q for what its product with itself gives.
  static constexpr int query_factors = other_dots + parts * 64 * 8, key_factors = query_factors + 64 * 4,
                       diagonal = key_factors + 64 * 4;
  static constexpr int rows = diagonal + 64 * 4;             // reciprocal norms of q, then of k
  static constexpr int through_gamma = rows + 64 * 8;        // gradient of 2^G_last, then times it
  static constexpr int unit = through_gamma + channels * 4;  // 8 x 8, and zeroes
  static constexpr int barrier = unit + 128 + 16;
  static constexpr int undo = barrier + 16;
  static constexpr int bytes = undo + 16;
  static_assert(2 * (bytes + 1024) <= 228 * 1024);
};

/// Whether whole chunks of normalised rows with one gate head a key head and plain gates are all that there is. The kernel
/// for them needs fewer instructions and registers.
template <int padded_k>
inline bool is_common(const Gdn2Channels& a) {
  const Activations& x = a.input.activations;
  return a.input.use_maps && a.input.chunks.all_whole() && a.input.key_dim == padded_k &&
         a.input.gate_heads == a.input.key_heads && x.l2_norm && x.plain_gates();
}
/// Tells the compiler what it need not ask.
template <int padded_k>
__device__ __forceinline__ Gdn2Channels know_common(Gdn2Channels a) {
  Activations& x = a.input.activations;
  a.input.use_maps = true, a.input.chunks.cu_seqlens = nullptr;
  a.input.key_dim = padded_k, a.input.gate_heads = a.input.key_heads;
  x.l2_norm = true, x.gate = Gate::log_decay, x.beta = Beta::plain;
  return a;
}

/// Byte offset of a float in two tiles of 64 rows, for an even row; the next row's float follows. Channels 0 to 7 of 16
/// lie in the first tile, the others in the second; the four pairs of floats of channels 0 to 3 in the 32 bytes that a tile
/// of 16-bit elements has for the 16, those of the others in the 32 bytes for the next row. Free of bank conflicts by four
/// pairs of rows and four channels, by 16 bytes of every eight channels, and by columns (see column_pair).
__device__ __forceinline__ unsigned float_offset(unsigned row, unsigned channel) {
  const unsigned second = channel / 8 % 2;
  return second * Gdn2ChannelsLayout::tile + (row + channel / 4 % 2) * 128 +
         ((channel / 16 ^ row / 2 % 4) << 5) + ((channel % 4 * 8) ^ second << 4);
}
/// The first of the two channels of a lane that works by columns.
__device__ __forceinline__ unsigned column_pair() {
  const unsigned lane = thread_again() % 32;
  return lane % 4 * 16 + lane / 16 * 8 + lane / 8 % 2 * 4 + lane / 4 % 2 * 2;
}

template <class E, int padded_k>
struct Gdn2ChannelsInput : Gdn2Input<E, padded_k, Gdn2ChannelsLayout> {
  using Input = Gdn2Input<E, padded_k, Gdn2ChannelsLayout>;
  using L = Gdn2ChannelsLayout;
  using Input::address, Input::chunk, Input::image, Input::memory;

  const Gdn2Channels& arguments;
  int member, members;  ///< gate head of the key head's
  std::int64_t slot;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }
  __device__ const Activations& activations() const { return arguments.input.activations; }

  /// What the kernels before have made, but for fragments.
  template <class Copy>
  __device__ void copy_between(Copy copy) const {
    const Gdn2Between& between = arguments.between;
    copy(L::rows, arguments.input.norms + image * 128, 512);
    copy(L::undo, between.undo + image * 4, 16);
    copy(L::through_gamma, between.d_gamma + image * padded_k + this->first_channel, L::channels * 4);
    copy(L::scores, static_cast<const char*>(between.scores) + image * (2 * panel_bytes), 2 * score_bytes);
  }
  /// What a thread reads of the gates: two channels of the warp's eight rows; pre-activations in the first float.
  struct Gates {
    float2 x[8];
  };
  /// Rows that have a token; none where there is no channel.
  __device__ int gate_rows(unsigned warp) const {
    return this->first_channel + 2 * (threadIdx.x % 32) < static_cast<unsigned>(arguments.input.key_dim)
               ? chunk.rows - static_cast<int>(8 * warp)
               : 0;
  }
  __device__ Gates read_gates(unsigned warp) const {
    const Gdn2Prepare& a = arguments.input;
    const unsigned step = a.gate_heads * a.key_dim;
    const std::int64_t first =
        (chunk.row + 8 * warp) * step + this->head * a.key_dim + this->first_channel + 2 * (threadIdx.x % 32);
    const int rows = gate_rows(warp);
    Gates gates;
    if (activations().gate == Gate::log_decay) {
      const float* from = a.g + first;
#pragma unroll
      for (int i = 0; i < 8; ++i, from += step) {
        gates.x[i] = {0.0f, 0.0f};
        if (i < rows) gates.x[i] = *reinterpret_cast<const float2*>(from);
      }
    } else {
      const E* from = static_cast<const E*>(a.raw_gate) + first;
#pragma unroll
      for (int i = 0; i < 8; ++i, from += step) {
        gates.x[i] = {0.0f, 0.0f};
        if (i < rows) gates.x[i].x = *reinterpret_cast<const float*>(from);
      }
    }
    return gates;
  }
  /// Loads the gates, and starts to load what the kernels before have made. Calls meanwhile(warp) then.
  template <class Work>
  __device__ Gates load(unsigned warp, Work meanwhile) const {
#if defined(DELTAPORT_BULK_COPY)
    if (this->whole()) {
      // All warps wait for the one that starts copies: its gates come first. A path of its own, or the compiler would let
      // it wait for gates before it starts them.
      if (warp != 0) {
        const Gates gates = read_gates(warp);
        meanwhile(warp);
        return gates;
      }
      const Gates gates = read_gates(0);
      if (elected()) {
        dependency_wait();
        barrier_arrive_expect(this->barrier(), 512 + 16 + L::channels * 4 + 2 * score_bytes);
        copy_between([&](int to, const void* from, int bytes) {
          copy_bulk(address(to), from, bytes, this->barrier());
        });
      }
      meanwhile(0);
      return gates;
    }
#endif
    const Gates gates = read_gates(warp);
    dependency_wait();
    copy_between([&](int to, const void* from, int bytes) {
      for (int i = 16 * static_cast<int>(threadIdx.x); i < bytes; i += 16 * L::threads)
        copy16_async(address(to) + i, static_cast<const char*>(from) + i, true);
    });
    copies_commit();
    meanwhile(warp);
    return gates;
  }
  /// To decays; 1 where there is no token or channel.
  __device__ void take_decays(float2 (&decay)[8], const Gates& gates, unsigned warp) const {
    const auto one = [](float2 x) { return float2{exp2_fast(log2_e * x.x), exp2_fast(log2_e * x.y)}; };
    const Activations& act = activations();
    if (act.gate == Gate::log_decay) {
#pragma unroll
      for (int i = 0; i < 8; ++i) decay[i] = one(gates.x[i]);
      return;
    }
    const Rate rate = read_rate(act, this->head);
    const int rows = gate_rows(warp);
    float2 bias = {};
    if (act.dt_bias != nullptr && rows > 0)
      bias =
          *reinterpret_cast<const float2*>(act.dt_bias + std::int64_t{this->head} * arguments.input.key_dim +
                                           this->first_channel + 2 * (threadIdx.x % 32));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 x = unpack<E>(__float_as_uint(gates.x[i].x));
      const float bound = act.gate_lower_bound;
      decay[i] = one({natural_decay(act.gate, x.x + bias.x, rate, bound),
                      natural_decay(act.gate, x.y + bias.y, rate, bound)});
      if (i >= rows) decay[i] = {1.0f, 1.0f};
    }
  }
  /// k, q and b o k of length 1, as normalise makes them, eight channels of two rows a thread.
  template <bool plain>
  __device__ void normalise_rows(Beta beta) const {
    constexpr unsigned step = L::threads / 8 * 128;
    unsigned char* const at = memory + threadIdx.x / 8 * 128 + ((threadIdx.x % 8 ^ threadIdx.x / 8 % 8) << 4);
    uint4 k[2], q[2], b[2];
    float2 norms[2];  // key, query
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      k[i] = *reinterpret_cast<const uint4*>(at + L::k + i * step);
      q[i] = *reinterpret_cast<const uint4*>(at + L::q + i * step);
      b[i] = *reinterpret_cast<const uint4*>(at + L::b + i * step);
      const float* const row = part<float>(L::rows) + threadIdx.x / 8 + 32 * i;
      norms[i] = {row[64], row[0]};
    }
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      uint4 erase;
      const auto one = [&](std::uint32_t& k, std::uint32_t& q, std::uint32_t b, std::uint32_t& erase) {
        const float2 key = unpack<E>(k) * norms[i].x, query = unpack<E>(q) * norms[i].y, gate = unpack<E>(b);
        const float2 product = (plain ? gate : erase_gate(beta, gate)) * key;
        k = pack<Half>(key.x, key.y), q = pack<Half>(query.x, query.y);
        erase = pack<Half>(product.x, product.y);
      };
      one(k[i].x, q[i].x, b[i].x, erase.x), one(k[i].y, q[i].y, b[i].y, erase.y);
      one(k[i].z, q[i].z, b[i].z, erase.z), one(k[i].w, q[i].w, b[i].w, erase.w);
      *reinterpret_cast<uint4*>(at + L::k + i * step) = k[i];
      *reinterpret_cast<uint4*>(at + L::q + i * step) = q[i];
      *reinterpret_cast<uint4*>(at + L::erase + i * step) = erase;
    }
  }
  /// Of the thread's row: what its product with itself gives.
  __device__ float read_diagonal(float undo) const {
    const unsigned i = threadIdx.x;
    return undo * __half2float(*part<Half>(L::scores + score_block(0, i / 16, i / 16) +
                                           score_element(i % 16, i % 16)));
  }
  /// The factors of a row, by its thread.
  __device__ void stage_row(float diagonal) const {
    const unsigned i = threadIdx.x;
    const float query = part<float>(L::rows)[i], key = part<float>(L::rows)[64 + i];
    const bool unit = activations().l2_norm;
    part<float>(L::query_factors)[i] = unit ? 1.0f : 1.0f / query;
    part<float>(L::key_factors)[i] = unit ? 1.0f : 1.0f / key;
    part<float>(L::diagonal)[i] = diagonal;
  }
  /// What decays between strips, by a thread of each channel; returns 2^G_last.
  __device__ float stage_ends() const {
    const unsigned channel = threadIdx.x % 64;
    const float* const edges = part<float>(L::edges) + channel / 2 * 4 + channel % 2;
    float first[4], rest[4];
#pragma unroll
    for (unsigned s = 0; s < 4; ++s) {
      const float* const strip = edges + 256 * s;
      first[s] = strip[0], rest[s] = strip[2] * strip[128] * strip[130];
    }
    const float second = rest[1] * first[2], third = rest[2] * first[3], after_second = third * rest[3],
                after_first = second * after_second, before_first = first[0] * rest[0] * first[1];
    float2* const ends = part<float2>(L::ends) + channel;
    ends[0] = {first[0], after_first}, ends[L::channels] = {before_first, after_second};
    ends[2 * L::channels] = {before_first * second, rest[3]};
    ends[3 * L::channels] = {before_first * second * third, third};
    part<float>(L::second)[channel] = second;
    return before_first * after_first;
  }
  /// The unit matrix as operand, see transpose.
  __device__ void stage_unit() const {
    const unsigned i = threadIdx.x;
    if (i >= 36) return;
    const std::uint32_t one = __is_same(E, Bf16) ? 0x3f80u : 0x3c00u;
    part<std::uint32_t>(L::unit)[i] = i % 4 != i / 8 || i >= 32 ? 0u : i / 4 % 2 == 0 ? one : one << 16;
  }
  /// What is made of the gates alone. Returns 2^G_last of its channel in the threads that stage_ends is for.
  __device__ float stage_gates(const Gates& gates, unsigned warp) const {
    const unsigned lane = threadIdx.x % 32;
    if (member == 0) stage_unit();
    const RowOctet own{address(0) + 1024 * warp + 4 * lane};
    float2 decay[8];
    take_decays(decay, gates, warp);
    const DecayProducts products = stage_octet(own, decay, L::levels + L::tile);
    const float2 first = decay[0];
    float4* const edges = part<float4>(L::edges) + lane;
    edges[32 * warp] = {first.x, first.y, products.to[7].x, products.to[7].y};
    // In one half of the strip the products are the factors.
    const bool even = warp % 2 == 0;
    own.store(even ? L::upper : L::levels, products.to);
    __syncthreads();  // this, and the barriers are made
    const float4 pair = edges[32 * (warp ^ 1)];
    float2 next = {1.0f, 1.0f};
    if (warp / 2 < 3) {
      const float4 edge = edges[64 * (warp / 2) + 64];
      next = {edge.x, edge.y};
    }
    if (even) {
      own.store(L::levels, products.behind, {pair.x, pair.y});
      next = next * float2{pair.x * pair.z, pair.y * pair.w};
    } else {
      own.store(L::upper, products.to, first * float2{pair.z, pair.w});
    }
    own.store(L::lower, products.behind, next);
    return warp >= L::warps - 2 ? stage_ends() : 0.0f;
  }
  /// What needs the tiles too. Returns `undo`.
  __device__ float stage_tiles(float gamma, unsigned warp) const {
    this->wait_tiles(member);
    const float undo = *part<float>(L::undo);
    // Read first and stored last: nobody waits for these.
    const bool has_rows = warp < 2, has_gamma = warp >= L::warps - 2;
    float* const through = part<float>(L::through_gamma) + threadIdx.x % 64;
    float staged = 0.0f;
    if (has_rows) staged = read_diagonal(undo);
    if (has_gamma) staged = gamma * *through;
    if (activations().beta == Beta::plain) {
      normalise_rows<true>(Beta::plain);
    } else {
      normalise_rows<false>(activations().beta);
    }
    if (has_rows) stage_row(staged);
    if (has_gamma) *through = staged;
    __syncthreads();
    return undo;
  }
};

}  // namespace deltaport::recurrence::cuda
