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

/// Tokens whose inputs a lane asks for before it works on the first of them. As many as there are taps, so that in the
/// unrolled loop what moves from one tap to the next stays in its register.
inline constexpr int batch = max_taps;

/// The last four inputs of one segment, newest first; those before the document are zero.
template <class A, int W>
struct InputWindow {
  A x[max_taps][W] = {};

  /// `position` is that of the new input in its document; `inner`: it is not the first.
  template <bool inner, class T>
  KOKKOS_FORCEINLINE_FUNCTION void push(const Pack<T, W>& from, int position) {
    for (int k = max_taps - 1; k > 0; --k)
      for (int j = 0; j < W; ++j) x[k][j] = x[k - 1][j];
    unpack(from, x[0]);
    if (inner || position > 0) return;
    for (int k = 1; k < max_taps; ++k)
      for (int j = 0; j < W; ++j) x[k][j] = A(0);
  }
  KOKKOS_FORCEINLINE_FUNCTION A convolve(const A (&w)[max_taps][W], int j) const {
    return ((w[3][j] * x[3][j] + w[2][j] * x[2][j]) + w[1][j] * x[1][j]) + w[0][j] * x[0][j];
  }
};

/// Whether all inputs that these tokens look back at belong to their documents: most tokens need not ask.
template <int count>
KOKKOS_FORCEINLINE_FUNCTION bool are_inner(const int (&position)[count]) {
  int least = position[0];
  for (int i = 1; i < count; ++i) least = position[i] < least ? position[i] : least;
  return least >= max_taps - 1;
}

/// What both directions read. Lanes beyond a row's end read its first elements, with taps of zero, and write nothing: to
/// load under a condition would take more instructions.
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
  /// The inputs before token t that belong to its document.
  KOKKOS_FORCEINLINE_FUNCTION void load_history(std::int64_t t, std::int64_t channel,
                                                InputWindow<A, W>& window) const {
    const int position = positions[t];
    for (int back = max_taps - 1; back > 0; --back)
      if (position >= back) load_pack(x + (t - back) * stride + channel, window.x[back - 1]);
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
  static constexpr std::int64_t run = 16;
  static_assert(run % batch == 0);
  PackedConvolution<T, W> in;
  T* out[3];
  A* rstd;

  std::int64_t groups() const { return (in.tokens + run - 1) / run * segment_count(in.shape); }

  /// What one lane has of a run: its elements of one head, at the next token.
  struct Lane {
    bool inside, unit_length, first;
    const T* from;
    T* to;
    std::int64_t to_stride;
    A* length;
    const std::int32_t* position;
    A w[max_taps][W] = {};
    InputWindow<A, W> window;
  };

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t segments = segment_count(in.shape), index = group_of(team) % segments;
    const std::int64_t begin = group_of(team) / segments * run;
    if (begin >= in.tokens) return;
    const Segment part = segment(in.shape, index);
    const bool inside = lane_of(team, in.lanes) * W < part.width;
    const int c = inside ? lane_of(team, in.lanes) * W : 0;
    const std::int64_t heads = part.part == 2 ? in.shape.value_heads : in.shape.key_heads;
    Lane lane;
    lane.inside = inside, lane.unit_length = part.unit_length, lane.first = inside && c == 0;
    lane.from = in.x + begin * in.stride + part.channel + c;
    lane.to = of_part(out, part.part) + (begin * heads + part.head) * part.width + c;
    lane.to_stride = heads * part.width;
    lane.length = rstd + begin * 2 * in.shape.key_heads + index;
    lane.position = in.positions + begin;
    if (lane.inside) in.load_taps(part.channel + c, lane.w);
    in.load_history(begin, part.channel + c, lane.window);
    int left = static_cast<int>(begin + run < in.tokens ? run : in.tokens - begin);
    for (; left >= batch; left -= batch) tokens<batch>(team, lane);
    for (; left > 0; --left) tokens<1>(team, lane);
  }

  /// The next `count` tokens. No way out in between: registers would be copied where ways meet.
  template <int count, class Team>
  KOKKOS_FORCEINLINE_FUNCTION void tokens(const Team& team, Lane& lane) const {
    Pack<T, W> x[count];
    int position[count];
    for (int i = 0; i < count; ++i) {
      position[i] = lane.position[i];
      x[i] = load_raw<W>(lane.from + i * in.stride);
    }
    if (are_inner(position))
      convolve<true>(team, lane, x, position);
    else
      convolve<false>(team, lane, x, position);
    lane.from += count * in.stride, lane.to += count * lane.to_stride;
    lane.length += count * 2 * in.shape.key_heads, lane.position += count;
  }
  template <bool inner, int count, class Team>
  KOKKOS_FORCEINLINE_FUNCTION void convolve(const Team& team, Lane& lane, const Pack<T, W> (&x)[count],
                                            const int (&position)[count]) const {
    for (int i = 0; i < count; ++i) {
      lane.window.template push<inner>(x[i], position[i]);
      A y[W], mine = 0;
      for (int j = 0; j < W; ++j) {
        y[j] = silu(lane.window.convolve(lane.w, j));
        mine += y[j] * y[j];
      }
      if (lane.unit_length) {
        const A inverse = inverse_sqrt(group_sum(team, in.lanes, mine) + static_cast<A>(length_eps));
        for (int j = 0; j < W; ++j) y[j] *= inverse;
        if (lane.first) lane.length[i * 2 * in.shape.key_heads] = inverse;
      }
      if (lane.inside) store_pack(lane.to + i * lane.to_stride, y);
    }
  }
};

/// A block of tokens of one head by one group of 32 lanes, with what the file qkv_conv_backward.cpp says of a task, all
/// of it in registers.
template <class T, int W>
struct PackedConvolveBackward {
  using A = Accumulate<T>;
  static constexpr std::int64_t block_tokens = 32;
  static_assert(block_tokens % batch == 0);
  PackedConvolution<T, W> in;
  const A* rstd;
  const T* dout[3];
  T* dx;
  std::int64_t dx_stride;
  A* partial;  // [blocks, max_taps, channels]

  std::int64_t blocks() const { return (in.tokens + block_tokens - 1) / block_tokens; }

  /// What one token brings along.
  struct Token {
    Pack<T, W> x, dy;
    A inverse = 1;
    int position = 0;
  };

  /// Sums of the input gradients of the last four tokens, newest first: a token adds to those of its window.
  struct Pending {
    A dx[max_taps][W] = {};
    KOKKOS_FORCEINLINE_FUNCTION void shift() {
      for (int k = max_taps - 1; k > 0; --k)
        for (int j = 0; j < W; ++j) dx[k][j] = dx[k - 1][j];
      for (int j = 0; j < W; ++j) dx[0][j] = A(0);
    }
    template <bool inner>
    KOKKOS_FORCEINLINE_FUNCTION void add(const A (&w)[max_taps][W], const A (&d)[W], int position) {
      for (int k = 0; k < max_taps; ++k)
        if (inner || position >= k)
          for (int j = 0; j < W; ++j) dx[k][j] += w[k][j] * d[j];
    }
  };

  /// Where one lane reads and writes: its elements of one head, at the block's first token.
  struct Lane {
    bool inside, unit_length;
    const T *x, *dy;
    std::int64_t dy_stride;
    const A* rstd;
    T* dx;
  };

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t segments = segment_count(in.shape), index = group_of(team) % segments;
    const std::int64_t block = group_of(team) / segments, begin = block * block_tokens;
    if (begin >= in.tokens) return;
    const int count = static_cast<int>(begin + block_tokens < in.tokens ? block_tokens : in.tokens - begin);
    const Segment part = segment(in.shape, index);
    const bool inside = lane_of(team, in.lanes) * W < part.width;
    const int c = inside ? lane_of(team, in.lanes) * W : 0;
    const std::int64_t heads = part.part == 2 ? in.shape.value_heads : in.shape.key_heads;
    const Lane lane{inside,
                    part.unit_length,
                    in.x + begin * in.stride + part.channel + c,
                    of_part(dout, part.part) + (begin * heads + part.head) * part.width + c,
                    heads * part.width,
                    rstd + begin * 2 * in.shape.key_heads + index,
                    dx + begin * dx_stride + part.channel + c};
    A w[max_taps][W] = {}, sums[max_taps][W] = {};
    InputWindow<A, W> window;
    Pending pending;
    if (inside) in.load_taps(part.channel + c, w);
    in.load_history(begin, part.channel + c, window);
    int first = 0;
    for (; first + batch <= count; first += batch)
      take<batch>(team, lane, begin, first, w, window, sums, pending);
    for (; first < count; ++first) take<1>(team, lane, begin, first, w, window, sums, pending);
    // Tokens after the block matter only while they look back into it.
    for (int after = 0; after < max_taps - 1; ++after) {
      const std::int64_t t = begin + count + after;
      pending.shift();
      if (t < in.tokens && in.positions[t] > after) {
        Token token;
        load(lane, begin, count + after, token);
        A d[W];
        window.template push<false>(token.x, token.position);
        pre_activation_gradient(team, lane, token, w, window, d);
        pending.template add<false>(w, d, token.position);
      }
      write(lane, count + after - (max_taps - 1), pending);
    }
    if (!lane.inside) return;
    for (int k = 0; k < max_taps; ++k)
      store_pack(partial + (block * max_taps + k) * in.taps.channels + part.channel + c, sums[k]);
  }

  /// `count` tokens from the block's token `first`. No way out in between: registers would be copied where ways meet.
  template <int count, class Team>
  KOKKOS_FORCEINLINE_FUNCTION void take(const Team& team, const Lane& lane, std::int64_t begin, int first,
                                        const A (&w)[max_taps][W], InputWindow<A, W>& window,
                                        A (&sums)[max_taps][W], Pending& pending) const {
    Token tokens[count];
    int position[count];
    for (int i = 0; i < count; ++i) {
      load(lane, begin, first + i, tokens[i]);
      position[i] = tokens[i].position;
    }
    if (are_inner(position))
      differentiate<true>(team, lane, tokens, first, w, window, sums, pending);
    else
      differentiate<false>(team, lane, tokens, first, w, window, sums, pending);
  }
  template <bool inner, int count, class Team>
  KOKKOS_FORCEINLINE_FUNCTION void differentiate(const Team& team, const Lane& lane,
                                                 const Token (&tokens)[count], int first,
                                                 const A (&w)[max_taps][W], InputWindow<A, W>& window,
                                                 A (&sums)[max_taps][W], Pending& pending) const {
    for (int i = 0; i < count; ++i) {
      A d[W];
      window.template push<inner>(tokens[i].x, tokens[i].position);
      pre_activation_gradient(team, lane, tokens[i], w, window, d);
      for (int k = 0; k < max_taps; ++k)
        for (int j = 0; j < W; ++j) sums[k][j] += d[j] * window.x[k][j];
      pending.shift();
      pending.template add<inner>(w, d, tokens[i].position);
      write(lane, first + i - (max_taps - 1), pending);
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void load(const Lane& lane, std::int64_t begin, int i, Token& token) const {
    token.position = in.positions[begin + i];
    if (lane.unit_length) token.inverse = lane.rstd[i * 2 * in.shape.key_heads];
    token.x = load_raw<W>(lane.x + i * in.stride);
    token.dy = load_raw<W>(lane.dy + i * lane.dy_stride);
  }

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void pre_activation_gradient(const Team& team, const Lane& lane,
                                                           const Token& token, const A (&w)[max_taps][W],
                                                           const InputWindow<A, W>& window, A (&d)[W]) const {
    A dy[W], unit[W], slope[W], mine = 0;
    unpack(token.dy, dy);
    for (int j = 0; j < W; ++j) {
      const A pre = window.convolve(w, j), s = sigmoid(pre);
      unit[j] = pre * s * token.inverse;
      slope[j] = s * (A(1) + pre * (A(1) - s));
      mine += dy[j] * unit[j];
    }
    // y = s / |s|:  ds = (dy - (dy . y) y) / |s|
    const A along = lane.unit_length ? group_sum(team, in.lanes, mine) : A(0);
    for (int j = 0; j < W; ++j) d[j] = slope[j] * token.inverse * (dy[j] - along * unit[j]);
  }

  /// The oldest pending gradient, that of the block's token i.
  KOKKOS_FORCEINLINE_FUNCTION void write(const Lane& lane, int i, const Pending& pending) const {
    if (lane.inside && i >= 0) store_pack(lane.dx + i * dx_stride, pending.dx[max_taps - 1]);
  }
};

}  // namespace deltaport::qkv
