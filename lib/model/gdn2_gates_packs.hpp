// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/math.hpp"
#include "model/packs.hpp"

namespace deltaport {

/// GDN2's gates of T tokens, one pack of a token's H K + H K + HV V columns: log decay, erase gate, write gate.
template <class T>
struct PackedGdn2Gates {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  std::int64_t keys, values, key_dim;
  const T *f, *b_in, *w_in;
  std::int64_t f_stride, b_stride, w_stride;
  const A *a_log, *dt_bias;
  A* g;
  T *b, *w;

  std::int64_t packs() const { return (2 * keys + values) / W; }  ///< of one token

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = (2 * keys + values) / W, t = i / row, column = (i - t * row) * W;
    if (column >= 2 * keys) {
      gate(w_in + t * w_stride, w + t * values, column - 2 * keys);
    } else if (column >= keys) {
      gate(b_in + t * b_stride, b + t * keys, column - keys);
    } else {
      const A rate = -Kokkos::exp(a_log[column / key_dim]);
      A x[W], bias[W];
      load_pack(f + t * f_stride + column, x);
      load_pack(dt_bias + column, bias);
      for (int j = 0; j < W; ++j) x[j] = rate * softplus(x[j] + bias[j]);
      store_pack(g + t * keys + column, x);
    }
  }
  static KOKKOS_FUNCTION void gate(const T* from, T* to, std::int64_t column) {
    A x[W];
    load_pack(from + column, x);
    for (int j = 0; j < W; ++j) x[j] = sigmoid(x[j]);
    store_pack(to + column, x);
  }
};

/// Through the sigmoids of the erase and the write gate, from their outputs: one pack of a token's H K + HV V columns.
template <class T>
struct PackedSigmoidBackward {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  std::int64_t keys, values;
  const T *b, *w, *db_out, *dw_out;
  T *db, *dw;
  std::int64_t db_stride, dw_stride;

  std::int64_t packs() const { return (keys + values) / W; }  ///< of one token

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = (keys + values) / W, t = i / row, column = (i - t * row) * W;
    if (column >= keys) {
      const std::int64_t at = t * values + column - keys;
      through(w + at, dw_out + at, dw + t * dw_stride + column - keys);
    } else {
      const std::int64_t at = t * keys + column;
      through(b + at, db_out + at, db + t * db_stride + column);
    }
  }
  static KOKKOS_FUNCTION void through(const T* gate, const T* d_gate, T* to) {
    A open[W], d[W];
    load_pack(gate, open);
    load_pack(d_gate, d);
    for (int j = 0; j < W; ++j) d[j] = d[j] * open[j] * (A(1) - open[j]);
    store_pack(to, d);
  }
};

/// Gradients of the log decay: a group of lanes per block of tokens and key head, K <= widest_row. Each lane keeps its
/// channels' sums over the block.
template <class T>
struct PackedDecayBackward {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  int lanes;
  std::int64_t tokens, block_tokens, key_heads, key_dim;
  const T* f;
  std::int64_t f_stride;
  const A *a_log, *dt_bias, *dg;
  T* df;
  std::int64_t df_stride;
  A* of_log;   // [blocks, H]
  A* of_bias;  // [blocks, H K]

  std::int64_t groups() const { return (tokens + block_tokens - 1) / block_tokens * key_heads; }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t group = group_of(team);
    if (group >= (tokens + block_tokens - 1) / block_tokens * key_heads) return;
    const std::int64_t block = group / key_heads, head = group - block * key_heads,
                       keys = key_heads * key_dim;
    const std::int64_t begin = block * block_tokens;
    const std::int64_t end = begin + block_tokens < tokens ? begin + block_tokens : tokens;
    const std::int64_t in_head = lane_of(team, lanes) * W, column = head * key_dim + in_head;
    const A rate = -Kokkos::exp(a_log[head]);
    A log_sum = 0;
    if (in_head < key_dim) {
      A bias[W], bias_sum[W] = {};
      load_pack(dt_bias + column, bias);
      for (std::int64_t t = begin; t < end; ++t) {
        A x[W], d[W];
        load_pack(f + t * f_stride + column, x);
        load_pack(dg + t * keys + column, d);
        for (int j = 0; j < W; ++j) {
          const A at = x[j] + bias[j], scaled = d[j] * rate;
          d[j] = scaled * sigmoid(at);
          log_sum += scaled * softplus(at);
          bias_sum[j] += d[j];
        }
        store_pack(df + t * df_stride + column, d);
      }
      store_pack(of_bias + block * keys + column, bias_sum);
    }
    const A sum = group_sum(team, lanes, log_sum);
    if (in_head == 0) of_log[block * key_heads + head] = sum;
  }
};

}  // namespace deltaport
