// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/math.hpp"
#include "model/attention_project.hpp"
#include "model/column_sum.hpp"
#include "model/packs.hpp"

namespace deltaport {

/// One head (query heads first, then key heads) in a token's projections, and in q or k.
struct AttentionHead {
  bool query;
  std::int64_t index, count, offset;
  KOKKOS_FORCEINLINE_FUNCTION static AttentionHead of(const AttentionLayout& layout, std::int64_t h) {
    if (h < layout.heads) return {true, h, layout.heads, layout.query_offset(h)};
    h -= layout.heads;
    return {false, h, layout.kv_heads, layout.key_offset(h)};
  }
};

/// What a lane needs to rotate its pack: where in the head the other half of each pair is, and the sign of its sine.
struct RotatedPack {
  bool rotated;
  std::int64_t partner, angle;
  double sign;
  KOKKOS_FORCEINLINE_FUNCTION static RotatedPack of(std::int64_t rotary_dim, std::int64_t c) {
    const std::int64_t half = rotary_dim / 2;
    if (c < half) return {true, c + half, c, -1.0};
    if (c < rotary_dim) return {true, c - half, c - half, 1.0};
    return {false, c, 0, 0.0};
  }
};

/// Norm and rotation of one head of one token by one group of lanes.
template <class T>
struct PackedNormAndRotate {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  int lanes;
  std::int64_t tokens;
  AttentionLayout layout;
  HeadNorms<T> norms;
  const T* projections;
  const A* table;
  T* q;
  T* k;

  std::int64_t groups() const { return tokens * (layout.heads + layout.kv_heads); }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t all = layout.heads + layout.kv_heads, t = group_of(team) / all;
    if (t >= tokens) return;
    const auto head = AttentionHead::of(layout, group_of(team) % all);
    const std::int64_t hd = layout.head_dim, c = lane_of(team, lanes) * W;
    const T* in = projections + t * layout.width() + head.offset;
    const T* weight = head.query ? norms.query_weight : norms.key_weight;
    A v[W] = {}, mine = 0;
    if (c < hd) load_pack(in + c, v);
    for (int j = 0; j < W; ++j) mine += v[j] * v[j];
    const A rstd =
        A(1) / Kokkos::sqrt(group_sum(team, lanes, mine) / static_cast<A>(hd) + static_cast<A>(norms.eps));
    if (c >= hd) return;
    scale(weight + c, rstd, v);
    const RotatedPack pair = RotatedPack::of(layout.rotary_dim, c);
    if (pair.rotated) {
      const A* angle = table + t * layout.rotary_dim + pair.angle;
      A other[W], cosine[W], sine[W];
      load_pack(in + pair.partner, other);
      scale(weight + pair.partner, rstd, other);
      load_pack(angle, cosine);
      load_pack(angle + layout.rotary_dim / 2, sine);
      for (int j = 0; j < W; ++j) v[j] = v[j] * cosine[j] + static_cast<A>(pair.sign) * other[j] * sine[j];
    }
    store_pack((head.query ? q : k) + (t * head.count + head.index) * hd + c, v);
  }

  KOKKOS_FORCEINLINE_FUNCTION static void scale(const T* weight, A rstd, A (&v)[W]) {
    A w[W];
    load_pack(weight, w);
    for (int j = 0; j < W; ++j) v[j] = v[j] * rstd * (A(1) + w[j]);
  }
};

/// One head of a block of tokens by one group of lanes. D is the type of dq and dk.
template <class T, class D>
struct PackedNormAndRotateBackward {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  static constexpr std::int64_t block_tokens = gradient_block_rows;
  int lanes;
  std::int64_t tokens;
  AttentionLayout layout;
  HeadNorms<T> norms;
  const T* projections;
  const A* table;
  const D* dq;
  const D* dk;
  T* d_projections;
  A* query_partial;  // [blocks, heads, head_dim]
  A* key_partial;    // [blocks, kv_heads, head_dim]

  std::int64_t groups() const { return gradient_blocks(tokens) * (layout.heads + layout.kv_heads); }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t all = layout.heads + layout.kv_heads, block = group_of(team) / all;
    const std::int64_t begin = block * block_tokens;
    if (begin >= tokens) return;
    const std::int64_t end = begin + block_tokens < tokens ? begin + block_tokens : tokens;
    const auto head = AttentionHead::of(layout, group_of(team) % all);
    const std::int64_t hd = layout.head_dim, c = lane_of(team, lanes) * W;
    const bool inside = c < hd;
    A w[W] = {}, sums[W] = {};
    if (inside) load_pack((head.query ? norms.query_weight : norms.key_weight) + c, w);
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t at = t * layout.width() + head.offset + c;
      A x[W] = {}, g[W] = {}, squares = 0, along = 0;
      if (inside) {
        load_pack(projections + at, x);
        rotate_back((head.query ? dq : dk) + (t * head.count + head.index) * hd, t, c, g);
      }
      for (int j = 0; j < W; ++j) {
        squares += x[j] * x[j];
        along += g[j] * (A(1) + w[j]) * x[j];
      }
      const A size = static_cast<A>(hd);
      const A rstd = A(1) / Kokkos::sqrt(group_sum(team, lanes, squares) / size + static_cast<A>(norms.eps));
      const A slope = group_sum(team, lanes, along) * rstd * rstd / size;
      for (int j = 0; j < W; ++j) {
        sums[j] += g[j] * (x[j] * rstd);
        x[j] = rstd * (g[j] * (A(1) + w[j]) - x[j] * slope);
      }
      if (inside) store_pack(d_projections + at, x);
    }
    if (inside)
      store_pack((head.query ? query_partial : key_partial) + (block * head.count + head.index) * hd + c,
                 sums);
  }

  KOKKOS_FORCEINLINE_FUNCTION void rotate_back(const D* grad, std::int64_t t, std::int64_t c,
                                               A (&g)[W]) const {
    load_pack(grad + c, g);
    const RotatedPack pair = RotatedPack::of(layout.rotary_dim, c);
    if (!pair.rotated) return;
    const A* angle = table + t * layout.rotary_dim + pair.angle;
    A other[W], cosine[W], sine[W];
    load_pack(grad + pair.partner, other);
    load_pack(angle, cosine);
    load_pack(angle + layout.rotary_dim / 2, sine);
    for (int j = 0; j < W; ++j) g[j] = g[j] * cosine[j] - static_cast<A>(pair.sign) * other[j] * sine[j];
  }
};

/// y = o sigmoid(gate) of one head of one token.
template <class T>
struct PackedGate {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  AttentionLayout layout;
  const T* projections;
  const T* o;
  T* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = i * W / layout.head_dim, c = i * W - row * layout.head_dim;
    const std::int64_t t = row / layout.heads, h = row - t * layout.heads;
    A v[W], g[W];
    load_pack(o + i * W, v);
    load_pack(projections + t * layout.width() + layout.gate_offset(h) + c, g);
    for (int j = 0; j < W; ++j) v[j] *= sigmoid(g[j]);
    store_pack(y + i * W, v);
  }
};

/// See apply_gate_backward(): one head of one token by one group of lanes.
template <class T>
struct PackedGateBackward {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  int lanes;
  std::int64_t tokens;
  AttentionLayout layout;
  const T* projections;
  const T* o;
  T* dy;
  T* y;
  T* d_projections;
  A* delta;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t row = group_of(team), t = row / layout.heads, h = row - t * layout.heads;
    if (t >= tokens) return;
    const std::int64_t c = lane_of(team, lanes) * W, at = row * layout.head_dim + c;
    const std::int64_t gate_at = t * layout.width() + layout.gate_offset(h) + c;
    const bool inside = c < layout.head_dim;
    A v[W] = {}, g[W] = {}, d[W] = {}, mine = 0;
    if (inside) {
      load_pack(o + at, v);
      load_pack(projections + gate_at, g);
      load_pack(dy + at, d);
    }
    for (int j = 0; j < W; ++j) {
      const A s = sigmoid(g[j]), value = v[j];
      g[j] = d[j] * value * s * (A(1) - s);
      d[j] = widen(static_cast<T>(d[j] * s));
      v[j] = value * s;
      mine += value * d[j];
    }
    if (inside) {
      store_pack(y + at, v);
      store_pack(d_projections + gate_at, g);
      store_pack(dy + at, d);
    }
    const A dot = group_sum(team, lanes, mine);
    if (c == 0) delta[h * tokens + t] = dot;
  }
};

}  // namespace deltaport
