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
  static constexpr int k = 0, q = tile, b = 2 * tile;     // later dk, dq, db
  static constexpr int erase = 3 * tile;                  // b o k, later the gate's gradient
  static constexpr int past = 4 * tile, rest = 5 * tile;  // 2^G and 2^(G_last - G), in bfloat16 for its range
  static constexpr int far = 6 * tile, near = 7 * tile;   // factors of the spans 32 and 16
  static constexpr int scores = 8 * tile;                 // dP, dL
  static constexpr int levels = scores + 2 * score_bytes;  // factors of the other spans: strip, level
  static constexpr int level_places = 4 * 4 * level_bytes;
  static constexpr int decays = levels;  // before: of every row and channel
  // Afterwards, where the warps meet: of every strip and channel the sums over its rows of dG, of k m' and of the gate's
  // gradient; of every part and row q dq and k dk; of every warp the rate's gradient.
  static constexpr int row_sums = levels, decay_sums = row_sums + 4 * channels * 4,
                       bias_sums = decay_sums + 4 * channels * 4, dots = bias_sums + 4 * channels * 4,
                       rates = dots + parts * 64 * 8;
  static_assert(rates + warps * 4 <= levels + level_places && 64 * channels * 4 <= level_places);
  static constexpr int edges = levels + level_places;
  static constexpr int rows = edges + 2 * 4 * channels * 4;
  static constexpr int through_gamma = rows + 64 * sizeof(RowScale);  // gamma times its gradient
  static constexpr int barrier = through_gamma + channels * 4;
  static constexpr int bytes = barrier + 16;
  static_assert(2 * (bytes + 1024) <= 228 * 1024);
};

template <class E, int padded_k>
struct Gdn2ChannelsInput : Gdn2Input<E, padded_k, Gdn2ChannelsLayout> {
  using Input = Gdn2Input<E, padded_k, Gdn2ChannelsLayout>;
  using L = Gdn2ChannelsLayout;
  using Input::address, Input::image, Input::memory;

  const Gdn2Channels& arguments;
  int member, members;  ///< gate head of the key head's
  std::int64_t slot;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }
  __device__ const Activations& activations() const { return arguments.input.activations; }

  /// By threads 0 to 63.
  __device__ void read_norms() const {
    const float* const from = arguments.input.norms + 2 * image * 64 + threadIdx.x;
    const float query = from[0], key = from[64];
    const bool unit = activations().l2_norm;
    part<RowScale>(L::rows)[threadIdx.x] = {key, query, unit ? 1.0f : 1.0f / key, unit ? 1.0f : 1.0f / query};
  }
  /// dP and dL from fragments to blocks, but for those above the diagonal.
  __device__ void read_scores(int warp) const {
    const uint4* const from =
        reinterpret_cast<const uint4*>(static_cast<const char*>(arguments.between.scores) +
                                       2 * image * panel_bytes) +
        threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 32 / L::warps; ++i) {
      const int task = i * L::warps + warp, which = task / 16, row = task / 4 % 4, column = task % 4;
      if (column > row) continue;
      const uint4 x = from[((which * 4 + row) * 4 + column) * 32];
      store_matrices(address(L::scores) + score_block(which, row, column) + score_rows(),
                     {x.x, x.y, x.z, x.w});
    }
  }
  __device__ float2* decay_at(const Strip& own, int i) const {
    return part<float2>(L::decays) + (strip_rows * own.strip + i) * (L::channels / 2) + own.channel / 2;
  }
  /// Half of a strip's decays to where both of its threads find them.
  __device__ void share_decays(const Strip& own, int begin) const {
    float2 decay[strip_rows / 2];
    this->read_decays(decay, own, begin);
#pragma unroll
    for (int i = 0; i < strip_rows / 2; ++i)
      *decay_at(own, begin + i) = make_float2(exp2_fast(decay[i].x), exp2_fast(decay[i].y));
  }
  __device__ void stage_first(const Strip& own, const float2 (&decay)[strip_rows], float2 d_gamma,
                              int levels) const {
    stage_level<8>(own, decay, levels);
    stage_level<4>(own, decay, levels + level_bytes);
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
  __device__ void stage_second(const Strip& own, const float2 (&decay)[strip_rows], int levels) const {
    stage_level<2>(own, decay, levels + 2 * level_bytes);
    stage_level<1>(own, decay, levels + 3 * level_bytes);
    const StripFactors f = this->factors(own);
    stage_join<false>(own, decay, f, L::near);
    float2 rest = f.next * f.after;
#pragma unroll
    for (int i = strip_rows - 1; i >= 0; --i) {
      if (i < strip_rows - 1) rest = rest * decay[i + 1];
      own.store<Bf16>(L::rest, i, rest);
    }
  }
  __device__ static int level_tile(int strip) {
    return L::levels + strip * 4 * level_bytes;
  }
  /// Everything up to the factors; two threads share a strip of two channels.
  __device__ void begin(int warp) const {
    constexpr int half_warps = L::warps / 2;
    const int second = warp / half_warps, strip = warp % half_warps, lane = threadIdx.x % 32;
    const Strip own{memory, L::k, L::q, L::erase, part<RowScale>(L::rows), strip, 2 * lane};
    share_decays(own, 8 * second);
    if (member == 0) dependency_wait();
    if (threadIdx.x < 64) read_norms();
    read_scores(warp);
    const float2 d_gamma = *reinterpret_cast<const float2*>(arguments.between.d_gamma + image * padded_k +
                                                            this->first_channel + own.channel);
    this->wait_tiles(member);
    __syncthreads();
    float2 decay[strip_rows];
#pragma unroll
    for (int i = 0; i < strip_rows; ++i) decay[i] = *decay_at(own, i);
    if (second == 0) this->note_edges(decay, own);
    normalise<E>(own, L::b, activations().beta, batch_rows * second);
    __syncthreads();  // the decays are read, their place is free
    if (second == 0) {
      stage_first(own, decay, d_gamma, level_tile(own.strip));
    } else {
      stage_second(own, decay, level_tile(own.strip));
    }
    __syncthreads();
  }
};

}  // namespace deltaport::recurrence::cuda
