// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/gdn2_gradients.cuh"
#include "recurrence/cuda/gdn2_gradients_levels.cuh"
#include "recurrence/cuda/gdn2_input.cuh"

/// The shared memory of a block of gdn2_channels, and what comes into it.
namespace deltaport::recurrence::cuda {

/// What a row's parts are multiplied with: dQ~, dK~ and dK^; dK^ as far as a decay goes with it, and k and q for what
/// the row's product with itself gives.
struct RowFactors {
  float query, key, decayed, diagonal;
};

/// 64 channels a block: two blocks on a multiprocessor wait for different things.
struct Gdn2ChannelsLayout {
  static constexpr int channels = 64, threads = 256, warps = threads / 32;
  static constexpr int parts = channels / gradient_channels;  // of the channels, one per warp of a strip
  static constexpr int tile = channels * 128;
  static constexpr int k = 0, q = tile, b = 2 * tile;     // b: later db
  static constexpr int erase = 3 * tile;                  // b o k
  static constexpr int past = 4 * tile, rest = 5 * tile;  // 2^G and 2^(G_last - G), in bfloat16 for its range
  static constexpr int far = 6 * tile, near = 7 * tile;   // factors of the spans 32 and 16
  static constexpr int scores = 8 * tile;                 // dP, dL
  static constexpr int levels =
      scores + 2 * score_bytes;  // factors of the spans 8, 4 and 2; decays of odd rows
  static constexpr int level_places = 4 * tile;
  static constexpr int decays = levels;  // before: of every row and channel
  // Sums in float (see float_offset), which take the bytes of the same strip and 16 channels in two tiles, read before by
  // the same warp alone: dG those of `past` and `rest`, dq and dk before the norm those of the levels.
  static constexpr int d_query = levels, d_key = levels + 2 * tile;
  // Afterwards, where the warps meet: sums over 8 rows of dG, and of the gate's gradient; of every warp the rate's.
  static constexpr int row_sums = far, bias_sums = row_sums + 8 * channels * 4,
                       rates = bias_sums + 8 * channels * 4;
  static_assert(rates + warps * 4 <= far + 2 * tile && 64 * channels * 4 <= level_places);
  static constexpr int edges = levels + level_places;
  // Later, of every strip the sums over its rows of k m', and of every row and part q dq and k dk.
  static constexpr int decay_sums = edges, dots = decay_sums + 4 * channels * 4;
  static_assert(dots + parts * 64 * 8 <= edges + 2 * 4 * channels * 4);
  static constexpr int other_dots =
      edges + 2 * 4 * channels * 4;  // of the other channels' block, written by it
  static constexpr int factors = other_dots + parts * 64 * 8;
  static constexpr int rows = factors + 64 * sizeof(RowFactors);
  static constexpr int through_gamma = rows + 64 * sizeof(RowScale);  // gamma times its gradient
  static constexpr int barrier = through_gamma + channels * 4;
  static constexpr int bytes = barrier + 16;
  static_assert(2 * (bytes + 1024) <= 228 * 1024);
};

/// Byte offset of a float in two tiles of 64 rows: channels 0 to 7 of 16 in the first, the others in the second, eight in
/// the 32 bytes that a tile of 16-bit elements has for the 16. Free of bank conflicts by columns of two rows each, and by
/// rows.
__device__ __forceinline__ unsigned float_offset(unsigned row, unsigned channel) {
  const unsigned second = channel / 8 % 2;
  return second * Gdn2ChannelsLayout::tile + row * 128 + ((channel / 16 ^ row / 2 % 4) << 5) +
         ((channel % 8 * 4) ^ second << 4);
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

  /// dP and dL from fragments to blocks, but for those above the diagonal. A warp has a column of two rows of blocks.
  struct Scores {
    uint4 x[4];
  };
  __device__ Scores read_scores(unsigned warp) const {
    const char* const from =
        static_cast<const char*>(arguments.between.scores) + 2 * image * panel_bytes + 16 * threadIdx.x;
    Scores scores;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      scores.x[i] = make_uint4(0u, 0u, 0u, 0u);
      if (warp % 4 <= warp / 4 + i % 2 * 2)
        scores.x[i] = *reinterpret_cast<const uint4*>(from + i / 2 * panel_bytes + i % 2 * (panel_bytes / 2));
    }
    return scores;
  }
  __device__ void store_scores(const Scores& scores, unsigned warp) const {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = warp / 4 + i % 2 * 2, column = warp % 4;
      const uint4& x = scores.x[i];
      if (column <= row)
        store_matrices(address(L::scores) + score_block(i / 2, row, column) + score_rows(),
                       {x.x, x.y, x.z, x.w});
    }
  }
  /// What a thread reads of the gates: four channels of every sixteenth row. Rows and channels that are none read
  /// something else instead, so that all loads go out together.
  struct Gates {
    uint4 x[4];  // floats, or pre-activations in the first half
  };
  __device__ bool gate_inside() const {
    return this->first_channel + 4 * (threadIdx.x % 16) < static_cast<unsigned>(arguments.input.key_dim);
  }
  __device__ Gates read_gates() const {
    const Gdn2Prepare& a = arguments.input;
    const unsigned step = a.gate_heads * a.key_dim, last = chunk.rows - 1,
                   channel = gate_inside() ? 4 * (threadIdx.x % 16) : 0u;
    const std::size_t first =
        static_cast<std::size_t>(chunk.row) * step + this->head * a.key_dim + this->first_channel;
    unsigned at[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) at[i] = min(16 * i + threadIdx.x / 16, last) * step + channel;
    Gates gates;
    if (activations().gate == Gate::log_decay) {
#pragma unroll
      for (int i = 0; i < 4; ++i) gates.x[i] = *reinterpret_cast<const uint4*>(a.g + first + at[i]);
    } else {
      const E* const from = static_cast<const E*>(a.raw_gate) + first;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 x = *reinterpret_cast<const uint2*>(from + at[i]);
        gates.x[i] = {x.x, x.y, 0u, 0u};
      }
    }
    return gates;
  }
  /// To decays; 1 where there is no token or channel.
  __device__ void store_decays(Gates& gates) const {
    if (activations().gate != Gate::log_decay) activate(gates);
    const int rows = gate_inside() ? chunk.rows - static_cast<int>(threadIdx.x / 16) : 0;
    float4* const to = part<float4>(L::decays) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto one = [](std::uint32_t x) { return exp2_fast(log2_e * __uint_as_float(x)); };
      const uint4& x = gates.x[i];
      to[i * L::threads] = 16 * i < rows ? make_float4(one(x.x), one(x.y), one(x.z), one(x.w))
                                         : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    }
  }
  __device__ void activate(Gates& gates) const {
    const Activations& act = activations();
    const Rate rate = read_rate(act, this->head);
    float2 bias[2] = {};
    if (act.dt_bias != nullptr && gate_inside()) {
      const auto* const from = reinterpret_cast<const float2*>(
          act.dt_bias + std::int64_t{this->head} * arguments.input.key_dim + this->first_channel);
      bias[0] = from[2 * (threadIdx.x % 16)], bias[1] = from[2 * (threadIdx.x % 16) + 1];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4& x = gates.x[i];
      const float2 left = unpack<E>(x.x), right = unpack<E>(x.y);
      const auto one = [&](float x) {
        return __float_as_uint(natural_decay(act.gate, x, rate, act.gate_lower_bound));
      };
      x = {one(left.x + bias[0].x), one(left.y + bias[0].y), one(right.x + bias[1].x),
           one(right.y + bias[1].y)};
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
      norms[i] = *reinterpret_cast<const float2*>(part<RowScale>(L::rows) + threadIdx.x / 8 + 32 * i);
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
  /// Where a strip's factors of a level go.
  __device__ static int level_tile(const Strip& own, int level) {
    return L::levels + level * L::tile + own.strip * level_bytes;
  }
  __device__ void stage_first(const Strip& own, const float2 (&decay)[strip_rows], float2 d_gamma) const {
    stage_level<8>(own, decay, level_tile(own, 0));
    stage_level<4>(own, decay, level_tile(own, 1));
    const StripFactors f = this->factors(own);
    stage_join<true>(own, decay, f, L::far);
    if (own.strip == 0) {
      *reinterpret_cast<float2*>(part<float>(L::through_gamma) + own.channel) = f.gamma * d_gamma;
    }
    float2 past = f.before;
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) {
      if (i > 0) past = past * decay[i];
      own.store<Bf16>(L::past, i, past);
    }
  }
  __device__ void stage_second(const Strip& own, const float2 (&decay)[strip_rows]) const {
    stage_level<2>(own, decay, level_tile(own, 2));
#pragma unroll
    for (int i = 0; i < strip_rows; i += 2) own.store<Half>(L::levels + 3 * L::tile, i, decay[i + 1]);
    const StripFactors f = this->factors(own);
    stage_join<false>(own, decay, f, L::near);
    float2 rest = f.next * f.after;
#pragma unroll
    for (int i = strip_rows - 1; i >= 0; --i) {
      if (i < strip_rows - 1) rest = rest * decay[i + 1];
      own.store<Bf16>(L::rest, i, rest);
    }
  }
  __device__ void stage_row(unsigned i, float undo) const {
    const RowScale& scale = part<RowScale>(L::rows)[i];
    const Half product =
        *part<Half>(L::scores + score_block(0, i / 16, i / 16) + score_element(i % 16, i % 16));
    part<RowFactors>(L::factors)[i] = {activations().scale * scale.query_back, scale.key_back,
                                       static_cast<int>(i) == chunk.rows - 1 ? 0.0f : scale.key_back,
                                       undo * __half2float(product)};
  }
  /// Everything up to the factors; two threads share a strip of two channels. Returns `undo`.
  __device__ float begin(unsigned warp) const {
    constexpr unsigned half_warps = L::warps / 2;
    const unsigned second = warp / half_warps, strip = warp % half_warps, lane = threadIdx.x % 32;
    const Strip own{memory,
                    L::k,
                    L::q,
                    L::erase,
                    part<RowScale>(L::rows),
                    static_cast<int>(strip),
                    static_cast<int>(2 * lane)};
    if (member == 0) dependency_wait();
    // All loads before what needs the first of them.
    const Scores scores = read_scores(warp);
    const float* const norms = arguments.input.norms + 2 * image * 64 + threadIdx.x % 64;
    const float query = norms[0], key = norms[64], undo = arguments.between.undo[image];
    const float2 d_gamma = *reinterpret_cast<const float2*>(arguments.between.d_gamma + image * padded_k +
                                                            this->first_channel + own.channel);
    Gates gates = read_gates();
    __syncthreads();  // the barriers are made
    if (threadIdx.x < 64) {
      const bool unit = activations().l2_norm;
      part<RowScale>(L::rows)[threadIdx.x] = {key, query, unit ? 1.0f : 1.0f / key,
                                              unit ? 1.0f : 1.0f / query};
    }
    store_decays(gates);
    store_scores(scores, warp);
    this->wait_tiles(member);
    __syncthreads();
    float2 decay[strip_rows];
#pragma unroll
    for (int i = 0; i < strip_rows; ++i)
      decay[i] = part<float2>(L::decays)[(strip_rows * strip + i) * (L::channels / 2) + lane];
    if (second == 0) this->note_edges(decay, own);
    if (activations().beta == Beta::plain) {
      normalise_rows<true>(Beta::plain);
    } else {
      normalise_rows<false>(activations().beta);
    }
    __syncthreads();  // the decays are read, their place is free
    if (second == 0) {
      stage_first(own, decay, d_gamma);
    } else {
      stage_second(own, decay);
      if (strip < 2) stage_row(32 * strip + lane, undo);
    }
    __syncthreads();
    return undo;
  }
};

}  // namespace deltaport::recurrence::cuda
