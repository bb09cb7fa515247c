// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/packs.hpp"
#include "model/qkv_segment.hpp"

namespace deltaport::qkv {

/// Elements of one lane: four times as many values are kept as in other rows, so packs are half as wide where
/// 32 lanes then still cover a segment.
inline constexpr int narrow_pack = 4;
inline bool takes_narrow_packs(const QkvShape& shape) {
  return shape.key_dim <= 32 * narrow_pack && shape.value_dim <= 32 * narrow_pack;
}
inline bool packable_segments(const QkvShape& shape, std::initializer_list<const void*> pointers,
                              std::initializer_list<std::int64_t> strides) {
  return shape.key_dim <= widest_row && shape.value_dim <= widest_row &&
         packable(shape.key_dim, pointers, strides) && shape.value_dim % pack_width == 0;
}

/// The last four inputs of one segment, of which those before the document count as zero.
template <class A, int W>
struct InputWindow {
  A x[max_taps][W] = {};

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION void push(const T* from) {
    for (int k = max_taps - 1; k > 0; --k)
      for (int j = 0; j < W; ++j) x[k][j] = x[k - 1][j];
    load_pack(from, x[0]);
  }
  /// Taps before the document are left out: position is that of the newest input.
  KOKKOS_FORCEINLINE_FUNCTION A input(int back, int j, std::int64_t position) const {
    return position >= back ? x[back][j] : A(0);
  }
  KOKKOS_FORCEINLINE_FUNCTION A convolve(const A (&w)[max_taps][W], int j, std::int64_t position) const {
    return ((w[3][j] * input(3, j, position) + w[2][j] * input(2, j, position)) +
            w[1][j] * input(1, j, position)) +
           w[0][j] * x[0][j];
  }
};

/// What both directions read.
template <class T, int W>
struct PackedConvolution {
  using A = Accumulate<T>;
  static constexpr int lanes = 32;
  QkvShape shape;
  TapTable<T> taps;
  std::int64_t tokens;
  const T* x;
  std::int64_t stride;
  const std::int32_t* positions;

  KOKKOS_FORCEINLINE_FUNCTION void load_taps(std::int64_t channel, A (&w)[max_taps][W]) const {
    for (int k = 0; k < max_taps; ++k) load_pack(taps.tap(k, channel), w[k]);
  }
  /// The inputs before token t, as far as there are any.
  KOKKOS_FORCEINLINE_FUNCTION void load_history(std::int64_t t, std::int64_t channel,
                                                InputWindow<A, W>& window) const {
    for (std::int64_t back = max_taps - 1; back > 0; --back)
      if (t >= back) window.push(x + (t - back) * stride + channel);
  }
};

/// One of the tensors of queries, keys and values. An index that is not known at compile time would take the pointers
/// through local memory.
template <class P>
KOKKOS_FORCEINLINE_FUNCTION P* of_part(P* const (&tensors)[3], int part) {
  return part == 0 ? tensors[0] : part == 1 ? tensors[1] : tensors[2];
}

/// A run of tokens of one head by one group of 32 lanes.
template <class T, int W>
struct PackedConvolveForward {
  using A = Accumulate<T>;
  static constexpr std::int64_t run = 8;
  PackedConvolution<T, W> in;
  T* out[3];
  A* rstd;

  std::int64_t groups() const { return (in.tokens + run - 1) / run * segment_count(in.shape); }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t segments = segment_count(in.shape), index = group_of(team) % segments;
    const std::int64_t begin = group_of(team) / segments * run;
    if (begin >= in.tokens) return;
    const std::int64_t end = begin + run < in.tokens ? begin + run : in.tokens;
    const Segment part = segment(in.shape, index);
    const int c = lane_of(team, in.lanes) * W;
    const bool inside = c < part.width;
    A w[max_taps][W] = {};
    InputWindow<A, W> window;
    if (inside) {
      in.load_taps(part.channel + c, w);
      in.load_history(begin, part.channel + c, window);
    }
    const std::int64_t heads = part.part == 2 ? in.shape.value_heads : in.shape.key_heads;
    for (std::int64_t t = begin; t < end; ++t) {
      if (inside) window.push(in.x + t * in.stride + part.channel + c);
      const std::int64_t position = in.positions[t];
      A y[W], mine = 0;
      for (int j = 0; j < W; ++j) {
        y[j] = silu(window.convolve(w, j, position));
        mine += y[j] * y[j];
      }
      if (part.unit_length) {
        const A inverse = A(1) / Kokkos::sqrt(group_sum(team, in.lanes, mine) + static_cast<A>(length_eps));
        for (int j = 0; j < W; ++j) y[j] *= inverse;
        if (c == 0) rstd[t * 2 * in.shape.key_heads + index] = inverse;
      }
      if (inside) store_pack(of_part(out, part.part) + (t * heads + part.head) * part.width + c, y);
    }
  }
};

/// A block of tokens of one head by one group of 32 lanes, with what the file qkv_conv_backward.cpp says of a task, all
/// of it in registers.
template <class T, int W>
struct PackedConvolveBackward {
  using A = Accumulate<T>;
  static constexpr std::int64_t block_tokens = 32;
  PackedConvolution<T, W> in;
  const A* rstd;
  const T* dout[3];
  T* dx;
  std::int64_t dx_stride;
  A* partial;  // [blocks, max_taps, channels]

  std::int64_t blocks() const { return (in.tokens + block_tokens - 1) / block_tokens; }

  /// Gradients of the pre-activations of the last four tokens, newest first, and the tokens' positions; position -1
  /// stands for a token that reaches nobody.
  struct Gradients {
    A d[max_taps][W] = {};
    std::int64_t position[max_taps] = {-1, -1, -1, -1};
    KOKKOS_FORCEINLINE_FUNCTION void shift() {
      for (int k = max_taps - 1; k > 0; --k) {
        position[k] = position[k - 1];
        for (int j = 0; j < W; ++j) d[k][j] = d[k - 1][j];
      }
    }
    /// What the token `places` after the oldest one adds to the oldest one's input gradient.
    KOKKOS_FORCEINLINE_FUNCTION A reached(int places, int j) const {
      return position[max_taps - 1 - places] >= places ? d[max_taps - 1 - places][j] : A(0);
    }
  };

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t segments = segment_count(in.shape), index = group_of(team) % segments;
    const std::int64_t block = group_of(team) / segments, begin = block * block_tokens;
    if (begin >= in.tokens) return;
    const std::int64_t end = begin + block_tokens < in.tokens ? begin + block_tokens : in.tokens;
    const Segment part = segment(in.shape, index);
    const int c = lane_of(team, in.lanes) * W;
    const bool inside = c < part.width;
    A w[max_taps][W] = {}, sums[max_taps][W] = {};
    InputWindow<A, W> window;
    Gradients recent;
    if (inside) {
      in.load_taps(part.channel + c, w);
      in.load_history(begin, part.channel + c, window);
    }
    for (std::int64_t t = begin; t < end + max_taps - 1; ++t) {
      recent.shift();
      recent.position[0] = -1;
      // Tokens after the block matter only while they look back into it.
      if (t < in.tokens && (t < end || in.positions[t] > t - end)) {
        if (inside) window.push(in.x + t * in.stride + part.channel + c);
        recent.position[0] = in.positions[t];
        pre_activation_gradient(team, part, index, t, c, w, window, recent.position[0], recent.d[0]);
        if (t < end) add_weight_gradient(window, recent, sums);
      }
      if (inside && t - (max_taps - 1) >= begin) input_gradient(part, t - (max_taps - 1), c, w, recent);
    }
    if (!inside) return;
    for (int k = 0; k < max_taps; ++k)
      store_pack(partial + (block * max_taps + k) * in.taps.channels + part.channel + c, sums[k]);
  }

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void pre_activation_gradient(const Team& team, const Segment& part,
                                                           std::int64_t index, std::int64_t t, int c,
                                                           const A (&w)[max_taps][W],
                                                           const InputWindow<A, W>& window,
                                                           std::int64_t position, A (&d)[W]) const {
    const std::int64_t heads = part.part == 2 ? in.shape.value_heads : in.shape.key_heads;
    A dy[W] = {}, unit[W], slope[W], mine = 0;
    if (c < part.width) load_pack(of_part(dout, part.part) + (t * heads + part.head) * part.width + c, dy);
    const A inverse = part.unit_length ? rstd[t * 2 * in.shape.key_heads + index] : A(1);
    for (int j = 0; j < W; ++j) {
      const A pre = window.convolve(w, j, position), s = sigmoid(pre);
      unit[j] = pre * s * inverse;
      slope[j] = s * (A(1) + pre * (A(1) - s));
      mine += dy[j] * unit[j];
    }
    // y = s / |s|:  ds = (dy - (dy . y) y) / |s|
    const A along = part.unit_length ? group_sum(team, in.lanes, mine) : A(0);
    for (int j = 0; j < W; ++j) d[j] = slope[j] * inverse * (dy[j] - along * unit[j]);
  }

  KOKKOS_FORCEINLINE_FUNCTION void add_weight_gradient(const InputWindow<A, W>& window,
                                                       const Gradients& recent,
                                                       A (&sums)[max_taps][W]) const {
    for (int k = 0; k < max_taps; ++k)
      for (int j = 0; j < W; ++j) sums[k][j] += recent.d[0][j] * window.input(k, j, recent.position[0]);
  }

  KOKKOS_FORCEINLINE_FUNCTION void input_gradient(const Segment& part, std::int64_t u, int c,
                                                  const A (&w)[max_taps][W], const Gradients& recent) const {
    A sum[W];
    for (int j = 0; j < W; ++j)
      sum[j] = ((w[0][j] * recent.d[max_taps - 1][j] + w[1][j] * recent.reached(1, j)) +
                w[2][j] * recent.reached(2, j)) +
               w[3][j] * recent.reached(3, j);
    store_pack(dx + u * dx_stride + part.channel + c, sum);
  }
};

}  // namespace deltaport::qkv
