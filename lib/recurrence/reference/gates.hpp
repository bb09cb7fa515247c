// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/recurrence/recurrence.hpp"
#include "recurrence/extents.hpp"

namespace deltaport::recurrence::reference {

/// Both recurrences in one form: S <- decay S; r = write v - S^T (erase k); S <- S + k r^T. GDN is the case
/// where decay, erase and write are the same for every channel.
template <class T>
struct GdnGates {
  using A = Accumulate<T>;
  const A* g;     // [rows, HV]
  const A* beta;  // [rows, HV]
  KOKKOS_INLINE_FUNCTION A decay(const Extents& x, std::int64_t row, int head, int) const {
    return Kokkos::exp(g[row * x.value_heads + head]);
  }
  KOKKOS_INLINE_FUNCTION A erase(const Extents& x, std::int64_t row, int head, int) const {
    return beta[row * x.value_heads + head];
  }
  KOKKOS_INLINE_FUNCTION A write(const Extents& x, std::int64_t row, int head, int) const {
    return beta[row * x.value_heads + head];
  }
};

template <class T>
struct Gdn2Gates {
  using A = Accumulate<T>;
  const A* g;  // [rows, gate heads, K]
  const T* b;  // [rows, gate heads, K]
  const T* w;  // [rows, HV, V]
  KOKKOS_INLINE_FUNCTION std::int64_t at(const Extents& x, std::int64_t row, int head, int channel) const {
    return (row * x.gate_heads + x.gate_head(head)) * x.key_dim + channel;
  }
  KOKKOS_INLINE_FUNCTION A decay(const Extents& x, std::int64_t row, int head, int channel) const {
    return Kokkos::exp(g[at(x, row, head, channel)]);
  }
  KOKKOS_INLINE_FUNCTION A erase(const Extents& x, std::int64_t row, int head, int channel) const {
    return static_cast<A>(b[at(x, row, head, channel)]);
  }
  KOKKOS_INLINE_FUNCTION A write(const Extents& x, std::int64_t row, int head, int channel) const {
    return static_cast<A>(w[(row * x.value_heads + head) * x.value_dim + channel]);
  }
};

template <class T>
GdnGates<T> gates_of(const GdnInputs<T>& inputs) {
  return {inputs.g.data(), inputs.beta.data()};
}
template <class T>
Gdn2Gates<T> gates_of(const Gdn2Inputs<T>& inputs) {
  return {inputs.g.data(), inputs.b.data(), inputs.w.data()};
}

}  // namespace deltaport::recurrence::reference
