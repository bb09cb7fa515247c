// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/cuda/fragments.cuh"
#include "recurrence/cuda/gdn2_gradients_input.cuh"

/// The end of a block of gdn2_channels: gradients of the gates.
namespace deltaport::recurrence::cuda {

template <class E, int padded_k>
struct Gdn2ChannelsEnd : Gdn2ChannelsInput<E, padded_k> {
  using Input = Gdn2ChannelsInput<E, padded_k>;
  using L = Gdn2ChannelsLayout;
  using Input::activations, Input::arguments, Input::chunk, Input::first_channel, Input::head, Input::image,
      Input::memory;
  static constexpr int blocks = padded_k / L::channels;

  template <class T>
  __device__ T* part(int offset) const {
    return Input::template part<T>(offset);
  }

  /// The end of the gates: a thread has 8 rows of two channels.
  struct Columns {
    unsigned channel;
    float2 dg[8];  // sums of dG from a row to the last of the 8
  };
  __device__ Columns sum_columns(unsigned warp) const {
    Columns columns;
    columns.channel = column_pair();
    const unsigned from = L::d_gate + float_offset(8 * warp, columns.channel);
#pragma unroll
    for (unsigned r = 0; r < 4; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(memory + (from ^ 32 * r) + r * 256);
      columns.dg[2 * r] = {x.x, x.z}, columns.dg[2 * r + 1] = {x.y, x.w};
    }
#pragma unroll
    for (int r = 6; r >= 0; --r) {
      columns.dg[r].x += columns.dg[r + 1].x, columns.dg[r].y += columns.dg[r + 1].y;
    }
    part<float2>(L::row_sums)[warp * (L::channels / 2) + threadIdx.x % 32] = columns.dg[0];
    return columns;
  }
  /// Adds what lies behind the rows and the chunk; then out, or through the activation.
  __device__ void write_gates(Columns& columns, unsigned warp) const {
    const auto add = [](float2& sum, float2 x) { sum.x += x.x, sum.y += x.y; };
    const float2 *const decays = part<float2>(L::decay_sums) + columns.channel / 2, *const rows_after =
                                                                                        part<float2>(
                                                                                            L::row_sums) +
                                                                                        threadIdx.x % 32;
    float2 tail = decays[0];
#pragma unroll
    for (int s = 1; s < 4; ++s) add(tail, decays[s * L::channels / 2]);
#pragma unroll
    for (unsigned later = 7; later > 0; --later) {
      if (later > warp) add(tail, rows_after[later * L::channels / 2]);
    }
#pragma unroll
    for (int r = 0; r < 8; ++r) columns.dg[r].x += tail.x, columns.dg[r].y += tail.y;
    const unsigned channel = first_channel + columns.channel, key_dim = arguments.input.key_dim;
    const int rows = channel < key_dim ? chunk.rows - static_cast<int>(8 * warp) : 0;
    const unsigned step = arguments.input.gate_heads * key_dim, own = 8 * warp * step + columns.channel;
    const std::size_t first = static_cast<std::size_t>(chunk.row) * step + head * key_dim + first_channel;
    if (activations().gate == Gate::log_decay) {
      float* const to = arguments.dg + first + own;
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        if (r < rows) __stwb(reinterpret_cast<float2*>(to + r * step), columns.dg[r]);
      }
      return;
    }
    const E* const from = static_cast<const E*>(arguments.input.raw_gate) + first + own;
    E* const to = static_cast<E*>(arguments.d_raw_gate) + first + own;
    std::uint32_t raw[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      raw[r] = r < rows ? *reinterpret_cast<const std::uint32_t*>(from + r * step) : 0u;
    }
    const Rate rate = read_rate(activations(), head);
    float2 bias = {0.0f, 0.0f}, d_bias = {0.0f, 0.0f};
    if (activations().dt_bias != nullptr && rows > 0)
      bias = *reinterpret_cast<const float2*>(activations().dt_bias + head * key_dim + channel);
    float d_rate = 0.0f;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      if (r >= rows) continue;
      const float2 x = unpack<E>(raw[r]);
      const float2 d_raw = {through_gate(x.x + bias.x, columns.dg[r].x, rate, d_rate),
                            through_gate(x.y + bias.y, columns.dg[r].y, rate, d_rate)};
      *reinterpret_cast<std::uint32_t*>(to + r * step) = pack<E>(d_raw.x, d_raw.y);
      d_bias.x += d_raw.x, d_bias.y += d_raw.y;
    }
    *reinterpret_cast<float2*>(part<float>(L::bias_sums) + warp * L::channels + columns.channel) = d_bias;
    d_rate = sum_warp(d_rate);
    if (threadIdx.x % 32 == 0) part<float>(L::rates)[warp] = d_rate;
    __syncthreads();
    write_partials();
  }
  __device__ void write_partials() const {
    if (arguments.rate_partials != nullptr && threadIdx.x == 0) {
      float sum = 0.0f;
      for (int w = 0; w < L::warps; ++w) sum += part<float>(L::rates)[w];
      arguments.rate_partials[image * blocks + first_channel / L::channels] = sum;
    }
    const int channel = first_channel + threadIdx.x;
    if (arguments.bias_partials != nullptr && threadIdx.x < L::channels &&
        channel < arguments.input.key_dim) {
      float sum = 0.0f;
      for (int w = 0; w < L::warps; ++w) sum += part<float>(L::bias_sums)[w * L::channels + threadIdx.x];
      arguments.bias_partials[image * arguments.input.key_dim + channel] = sum;
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
};

}  // namespace deltaport::recurrence::cuda
