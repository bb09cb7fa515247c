// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/math.hpp"
#include "model/packs.hpp"

namespace deltaport {

/// a = silu(gate) up, one pack; a row of gate_up holds the gates first.
template <class T>
struct PackedSwiGlu {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  std::int64_t inner;
  const T* gate_up;
  T* a;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = i * W / inner, column = i * W - row * inner;
    const T* gate = gate_up + 2 * row * inner + column;
    A g[W], u[W];
    load_pack(gate, g);
    load_pack(gate + inner, u);
    for (int j = 0; j < W; ++j) g[j] = silu(g[j]) * u[j];
    store_pack(a + i * W, g);
  }
};

/// Given da in `a`: writes a = silu(gate) up there, and the gradients of gate and up over gate and up.
template <class T>
struct PackedSwiGluBackward {
  using A = Accumulate<T>;
  static constexpr int W = pack_width;
  std::int64_t inner;
  T* gate_up;
  T* a;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t row = i * W / inner, column = i * W - row * inner;
    T* gate = gate_up + 2 * row * inner + column;
    A g[W], u[W], d[W];
    load_pack(gate, g);
    load_pack(gate + inner, u);
    load_pack(a + i * W, d);
    for (int j = 0; j < W; ++j) {
      const A s = sigmoid(g[j]), value = g[j] * s, da = d[j];
      d[j] = value * u[j];
      g[j] = da * u[j] * (s + value * (A(1) - s));
      u[j] = da * value;
    }
    store_pack(a + i * W, d);
    store_pack(gate, g);
    store_pack(gate + inner, u);
  }
};

}  // namespace deltaport
