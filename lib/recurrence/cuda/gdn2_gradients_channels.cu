// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_gradients.cuh"
#include "recurrence/cuda/gdn2_gradients_input.cuh"
#include "recurrence/cuda/gdn2_gradients_levels.cuh"
#include "recurrence/cuda/launch.hpp"
#include "recurrence/cuda/movement.cuh"

namespace deltaport::recurrence::cuda {
namespace {

template <class E, int padded_k>
struct Block : Gdn2ChannelsInput<E, padded_k> {
  using Input = Gdn2ChannelsInput<E, padded_k>;
  using L = Gdn2ChannelsLayout;
  using Input::activations, Input::address, Input::arguments, Input::chunk, Input::head, Input::image,
      Input::key_head, Input::member, Input::members, Input::memory, Input::slot, Input::threads,
      Input::first_channel;
  static constexpr int steps = padded_k / 16, blocks = padded_k / L::channels;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }

  __device__ uint4 fragment(const void* of, const GradientStrip& own, int s) const {
    const char* const from = static_cast<const char*>(of) + image * padded_k * 128;
    return reinterpret_cast<const uint4*>(
        from)[(own.strip * steps + first_channel / 16 + s) * 32 + threadIdx.x % 32];
  }
  /// What the first kernel leaves for 16 channels; loaded ahead of its use.
  struct Far {
    uint4 d_query, d_erase, d_restored;
  };
  __device__ Far load_far(int g, const GradientStrip& own) const {
    const int s = (own.first + 16 * g) / 16;
    return {fragment(arguments.between.d_query, own, s), fragment(arguments.between.d_erase, own, s),
            fragment(arguments.between.d_restored, own, s)};
  }
  /// Sums over the lanes that share columns.
  __device__ static float sum_rows(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
  }
  /// The first part of the end, for 16 channels from 16 g of the warp's: u, t and m become dq, dG and dk (before
  /// the norm), summed from the last row of the strip; db goes to its tile.
  __device__ void combine(LevelSums& sums, int g, const Far& far, const GradientStrip& own, float undo,
                          float (&dot_q)[2], float (&dot_k)[2]) const {
    const int lane = threadIdx.x % 32, channel = own.first + 16 * g, row = strip_rows * own.strip;
    const uint4 &d_query = far.d_query, &d_erase = far.d_erase, &d_restored = far.d_restored;
    const std::uint32_t d_queries[4] = {d_query.x, d_query.y, d_query.z, d_query.w},
                        d_erases[4] = {d_erase.x, d_erase.y, d_erase.z, d_erase.w},
                        d_restoreds[4] = {d_restored.x, d_restored.y, d_restored.z, d_restored.w};
    Fragment q, k, erase, b, past, rest;
    load_a(q, address(L::q), row, channel);
    load_a(k, address(L::k), row, channel);
    load_a(erase, address(L::erase), row, channel);
    load_a(b, address(L::b), row, channel);
    load_a(past, address(L::past), row, channel);
    load_a(rest, address(L::rest), row, channel);
    // dG takes only what a decay goes with: the rest would cancel but for roundings, and nothing be left of strong
    // decays. So it leaves out products of a row with itself, and what the last row gives the state.
    float query_factor[2], key_factor[2], far_factor[2], diagonal[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int i = row + lane / 4 + 8 * n;
      const RowScale& scale = part<RowScale>(L::rows)[i];
      query_factor[n] = activations().scale * scale.query_back, key_factor[n] = scale.key_back;
      far_factor[n] = i == chunk.rows - 1 ? 0.0f : 1.0f;
      diagonal[n] = undo * __half2float(*part<Half>(L::scores + score_offset(i, i)));
    }
    float through[4] = {};  // sums of k m' over the rows, of the lane's columns
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 8 * g + 2 * i, n = i % 2, c = i / 2 * 2;
      const float2 query = unpack<Half>(q[i]), key = unpack<Half>(k[i]), product = unpack<Half>(erase[i]);
      const float2 before = unpack<Bf16>(past[i]), after = unpack<Bf16>(rest[i]), raw = unpack<E>(b[i]);
      float2 gate = raw, slope = {1.0f, 1.0f};
      if (activations().beta != Beta::plain) {
        const float2 s = {sigmoid_fast(raw.x), sigmoid_fast(raw.y)};
        gate = s * (activations().beta == Beta::sigmoid ? 1.0f : 2.0f);
        slope = gate * make_float2(1.0f - s.x, 1.0f - s.y);
      }
      const float2 far_q = unpack<E>(d_queries[i]), far_b = unpack<E>(d_erases[i]),
                   far_k = unpack<E>(d_restoreds[i]);
      const auto one = [&](int e, float query, float key, float product, float before, float after,
                           float gate, float slope, float far_q, float far_b, float far_k) {
        const float d_q = undo * sums.u[j + e] + query_factor[n] * before * far_q;
        const float d_product = undo * sums.t[j + e] + key_factor[n] * before * far_b;
        const float near = undo * sums.m[j + e], far = key_factor[n] * after * far_k;
        const float decayed = far_factor[n] * far;
        sums.u[j + e] = d_q + diagonal[n] * key;
        sums.m[j + e] = d_product * gate + near + far + diagonal[n] * query;
        sums.t[j + e] = query * d_q + product * d_product - key * (near + decayed);
        through[c + e] += key * decayed;
        return d_product * key * slope;
      };
      const float d_b[2] = {
          one(0, query.x, key.x, product.x, before.x, after.x, gate.x, slope.x, far_q.x, far_b.x, far_k.x),
          one(1, query.y, key.y, product.y, before.y, after.y, gate.y, slope.y, far_q.y, far_b.y, far_k.y)};
      b[i] = pack<E>(d_b[0], d_b[1]);
    }
    store_a(address(L::b), row, channel, b);
    if (members > 1) exchange(sums, g, own);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 8 * g + 2 * i;
      const float2 query = unpack<Half>(q[i]), key = unpack<Half>(k[i]);
      dot_q[i % 2] += query.x * sums.u[j] + query.y * sums.u[j + 1];
      dot_k[i % 2] += key.x * sums.m[j] + key.y * sums.m[j + 1];
    }
    // Suffix sums of dG over the strip's rows.
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int j = 8 * g + 4 * (c / 2) + c % 2;
      float &first = sums.t[j], &second = sums.t[j + 2];
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
        const float x = __shfl_down_sync(0xffffffffu, first, 4 * step),
                    y = __shfl_down_sync(0xffffffffu, second, 4 * step);
        if (lane / 4 + step < 8) first += x, second += y;
      }
      first += __shfl_sync(0xffffffffu, second, lane % 4);
      through[c] = sum_rows(through[c]);
      if (lane < 4) {
        const int at = own.strip * L::channels + channel + 8 * (c / 2) + 2 * lane + c % 2;
        part<float>(L::row_sums)[at] = first;
        part<float>(L::decay_sums)[at] = through[c];
      }
    }
  }
  /// Adds the sums of the gate heads before, which this thread has left; leaves them for the next.
  __device__ void exchange(LevelSums& sums, int g, const GradientStrip& own) const {
    float4* const at =
        reinterpret_cast<float4*>(arguments.sums) +
        (((slot * arguments.input.key_heads + key_head) * blocks + first_channel / L::channels) * 8 + 4 * g) *
            threads +
        threadIdx.x;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float4 &left = at[n * threads], &right = at[(2 + n) * threads];
      float *const u = sums.u + 8 * g + 4 * n, *const m = sums.m + 8 * g + 4 * n;
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
  }
  /// Through the norm to the places of q and k.
  __device__ void write_rows(const LevelSums& sums, int g, const GradientStrip& own) const {
    const int channel = own.first + 16 * g, row = strip_rows * own.strip;
    Fragment q, k;
    load_a(q, address(L::q), row, channel);
    load_a(k, address(L::k), row, channel);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int i = row + threadIdx.x % 32 / 4 + 8 * n;
      const RowScale& scale = part<RowScale>(L::rows)[i];
      float2 dot = {0.0f, 0.0f};
      if (activations().l2_norm) {
#pragma unroll
        for (int block = 0; block < blocks; ++block) {
#pragma unroll
          for (int part_ = 0; part_ < L::parts; ++part_) {
            const float2 x = cluster_read<blocks>(part<float2>(L::dots) + part_ * 64 + i, block);
            dot.x += x.x, dot.y += x.y;
          }
        }
      }
#pragma unroll
      for (int s = n; s < 4; s += 2) {
        const int j = 8 * g + 2 * s;
        const float2 query = unpack<Half>(q[s]), key = unpack<Half>(k[s]);
        q[s] = pack<E>(scale.query * (sums.u[j] - dot.x * query.x),
                       scale.query * (sums.u[j + 1] - dot.x * query.y));
        k[s] = pack<E>(scale.key * (sums.m[j] - dot.y * key.x), scale.key * (sums.m[j + 1] - dot.y * key.y));
      }
    }
    store_a(address(L::q), row, channel, q);
    store_a(address(L::k), row, channel, k);
  }
  /// The gate's gradient: adds what lies behind the strip and the chunk; then out, or through the activation.
  __device__ void write_gates(LevelSums& sums, int g, const GradientStrip& own, const Rate& rate,
                              float& d_rate) const {
    const int lane = threadIdx.x % 32, row = strip_rows * own.strip;
    Fragment out;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int channel = own.first + 16 * g + 8 * block + 2 * (lane % 4), place = first_channel + channel;
      float2 tail = *reinterpret_cast<const float2*>(part<float>(L::through_gamma) + channel);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const float2 through =
            *reinterpret_cast<const float2*>(part<float>(L::decay_sums) + s * L::channels + channel);
        tail.x += through.x, tail.y += through.y;
      }
      for (int s = own.strip + 1; s < 4; ++s) {
        const float2 later =
            *reinterpret_cast<const float2*>(part<float>(L::row_sums) + s * L::channels + channel);
        tail.x += later.x, tail.y += later.y;
      }
      float2 bias = {0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int i = row + lane / 4 + 8 * n, j = 8 * g + 4 * block + 2 * n;
        const float2 dg = {sums.t[j] + tail.x, sums.t[j + 1] + tail.y};
        const bool inside = i < chunk.rows && place < arguments.input.key_dim;
        const std::int64_t at =
            ((chunk.row + i) * arguments.input.gate_heads + head) * arguments.input.key_dim + place;
        if (activations().gate == Gate::log_decay) {
          if (inside) *reinterpret_cast<float2*>(arguments.dg + at) = dg;
          continue;
        }
        float2 d_raw = {0.0f, 0.0f};
        if (inside) {
          float2 x = unpack<E>(
              *reinterpret_cast<const std::uint32_t*>(static_cast<const E*>(arguments.input.raw_gate) + at));
          if (activations().dt_bias != nullptr) {
            const float2 more = *reinterpret_cast<const float2*>(
                activations().dt_bias + std::int64_t{head} * arguments.input.key_dim + place);
            x.x += more.x, x.y += more.y;
          }
          d_raw.x = through_gate(x.x, dg.x, rate, d_rate);
          d_raw.y = through_gate(x.y, dg.y, rate, d_rate);
        }
        out[2 * block + n] = pack<E>(d_raw.x, d_raw.y);
        bias.x += d_raw.x, bias.y += d_raw.y;
      }
      if (arguments.bias_partials != nullptr) {
        bias.x = sum_rows(bias.x), bias.y = sum_rows(bias.y);
        if (lane < 4)
          *reinterpret_cast<float2*>(part<float>(L::bias_sums) + own.strip * L::channels + channel) = bias;
      }
    }
    if (activations().gate != Gate::log_decay) {
      store_a(address(L::erase), row, own.first + 16 * g, out);
    }
  }
  /// Gradient of a pre-activation (with its bias) x; adds to that of A_log. A gate that forgets all has none: what
  /// roundings leave would meet a slope as large as the gate.
  __device__ float through_gate(float x, float dg, const Rate& rate, float& d_rate) const {
    const float bound = activations().gate_lower_bound,
                natural = natural_decay(activations().gate, x, rate, bound);
    if (natural < lowest_log_decay) return 0.0f;
    if (activations().gate == Gate::softplus) {
      d_rate += pass_on(dg, natural);
      return pass_on(dg, softplus_slope(x, rate));
    }
    const float s = sigmoid_fast(rate.rate * x), slope = s * (1.0f - s);
    const float d_raw = slope == 0.0f ? 0.0f : dg * bound * rate.rate * slope;
    d_rate += pass_on(d_raw, x);
    return d_raw;
  }

  /// Rows of a tile to a tensor, by all threads.
  __device__ void store_tile(int tile, void* tensor, int heads, int tensor_head) const {
    const TensorTiles to{tensor, heads, arguments.input.key_dim};
    to.store<L::channels, threads>(address(tile), chunk.row, chunk.rows, tensor_head, first_channel,
                                   threadIdx.x);
  }

  __device__ void run(int warp) const {
    const int lane = threadIdx.x % 32, part_ = warp % L::parts;
    this->begin(warp);
    const GradientStrip own{
        memory, L::k, L::q, L::erase, L::scores, warp / L::parts, gradient_channels * part_};
    const float undo = arguments.between.undo[image];  // here, so that nothing waits for it
    LevelSums sums;
#pragma unroll
    for (int j = 0; j < LevelSums::n; ++j) sums.u[j] = sums.t[j] = sums.m[j] = 0.0f;
    const LevelGradients levels{own, sums};
    levels.inside(Input::level_tile(own.strip));
    levels.join<1>(own.strip % 2 == 1, own.strip ^ 1, L::near);
    levels.join<2>(own.strip >= 2, own.strip >= 2 ? 0 : 2, L::far);
    Far far = load_far(0, own);
    __syncthreads();  // the places of db, dq and dk are no operands any more

    float dot_q[2] = {}, dot_k[2] = {};
#pragma unroll
    for (int g = 0; g < gradient_groups; ++g) {
      const Far next = g + 1 < gradient_groups ? load_far(g + 1, own) : far;
      combine(sums, g, far, own, undo, dot_q, dot_k);
      far = next;
    }
    sum_quads(dot_q), sum_quads(dot_k);
    if (lane % 4 == 0) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
        part<float2>(L::dots)[part_ * 64 + strip_rows * own.strip + lane / 4 + 8 * n] =
            make_float2(dot_q[n], dot_k[n]);
    }
    const bool last = member + 1 == members;
    meet(last);
    const Rate rate = read_rate(activations(), head);
    float d_rate = 0.0f;
#pragma unroll
    for (int g = 0; g < gradient_groups; ++g) {
      if (last) write_rows(sums, g, own);
      write_gates(sums, g, own, rate, d_rate);
    }
    d_rate = sum_warp(d_rate);
    if (lane == 0) part<float>(L::rates)[warp] = d_rate;
    if constexpr (blocks > 1) {
      if (last) cluster_arrive();  // the other block's sums are read
    }
    __syncthreads();
    finish(last);
    if constexpr (blocks > 1) {
      if (last) cluster_wait();  // or it might read what is gone
    }
  }
  /// The sums over channels are there: of all channels, where they are needed.
  __device__ void meet(bool last) const {
    if constexpr (blocks > 1) {
      if (last) {
        cluster_arrive();
        cluster_wait();
        return;
      }
    }
    __syncthreads();
  }
  __device__ void finish(bool last) const {
    if (last) {
      store_tile(L::q, arguments.dq, arguments.input.key_heads, key_head);
      store_tile(L::k, arguments.dk, arguments.input.key_heads, key_head);
    }
    store_tile(L::b, arguments.db, arguments.input.gate_heads, head);
    if (activations().gate == Gate::log_decay) return;
    store_tile(L::erase, arguments.d_raw_gate, arguments.input.gate_heads, head);
    if (arguments.rate_partials != nullptr && threadIdx.x == 0) {
      float sum = 0.0f;
      for (int w = 0; w < L::warps; ++w) sum += part<float>(L::rates)[w];
      arguments.rate_partials[image * blocks + first_channel / L::channels] = sum;
    }
    const int channel = first_channel + threadIdx.x;
    if (arguments.bias_partials != nullptr && threadIdx.x < L::channels &&
        channel < arguments.input.key_dim) {
      const float* const from = part<float>(L::bias_sums) + threadIdx.x;
      arguments.bias_partials[image * arguments.input.key_dim + channel] =
          from[0] + from[L::channels] + from[2 * L::channels] + from[3 * L::channels];
    }
  }
};

template <class E, int padded_k>
__global__ void __launch_bounds__(Gdn2ChannelsLayout::threads, 2)
    gdn2_channels(const Gdn2Channels a, const __grid_constant__ Gdn2PrepareMaps maps) {
  using B = Block<E, padded_k>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t item = blockIdx.x / B::blocks;
  const std::int64_t slot = a.input.chunks.in_time(item / a.input.key_heads, true);
  const int first_channel = static_cast<int>(blockIdx.x % B::blocks) * B::L::channels;
  const int key_head = item % a.input.key_heads, members = a.input.gate_heads / a.input.key_heads;
  const Chunk chunk = a.input.chunks.at(slot);
  if (chunk.rows == 0) return;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // uniform over the warp
  for (int member = 0; member < members; ++member) {
    const int head = key_head * members + member;
    const std::int64_t image = slot * a.input.gate_heads + head;
    const B block{
        {{a.input, maps, memory, chunk, head, key_head, image, first_channel}, a, member, members, slot}};
    if (member == 0) {
      if (threadIdx.x == 0) barrier_init(block.barrier(), 1);
    } else {
      fence_async_proxy();  // the tiles' places are read, and filled again
    }
    __syncthreads();
    block.load_tiles();
    block.run(warp);
  }
}

}  // namespace

template <class E, int padded_k>
cudaError_t launch_gdn2_channels(const Gdn2Channels& a, const Gdn2PrepareMaps& maps, cudaStream_t stream) {
  constexpr int blocks = Block<E, padded_k>::blocks;
  const dim3 grid(static_cast<unsigned>(a.input.chunks.slots() * a.input.key_heads * blocks));
  return launch_clusters(blocks, gdn2_channels<E, padded_k>, grid, Gdn2ChannelsLayout::threads,
                         Gdn2ChannelsLayout::bytes, Start::beside_previous, stream, a, maps);
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
