// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/recurrence/recurrence.hpp"
#include "recurrence/extents.hpp"
#include "recurrence/portable/team.hpp"

namespace deltaport::recurrence::portable {

/// Input pointers of one GDN call.
template <class T>
struct GdnPointers {
  using A = Accumulate<T>;
  Extents x;
  const T *q, *k, *v;
  const A *g, *beta, *initial_state;
  A scale;
  int chunk_size;

  GdnPointers() = default;
  GdnPointers(const Extents& extents, const GdnInputs<T>& in, const Options& options)
      : x(extents),
        q(in.q.data()),
        k(in.k.data()),
        v(in.v.data()),
        g(in.g.data()),
        beta(in.beta.data()),
        initial_state(in.initial_state.data()),
        scale(static_cast<A>(options.scale)),
        chunk_size(options.chunk_size) {}

  KOKKOS_INLINE_FUNCTION std::int64_t key_at(std::int64_t row, int head) const {
    return (row * x.key_heads + x.key_head(head)) * x.key_dim;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t value_at(std::int64_t row, int head) const {
    return (row * x.value_heads + head) * x.value_dim;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t key_stride() const { return std::int64_t{x.key_heads} * x.key_dim; }
  KOKKOS_INLINE_FUNCTION std::int64_t value_stride() const {
    return std::int64_t{x.value_heads} * x.value_dim;
  }
};

/// Gates of one chunk, all built by multiplying decays exp(g) <= 1 in the order of the tokens. No difference
/// of cumulated sums is ever formed, so g = -inf and any strong gate give their exact limits and no row sees
/// a later gate.
template <class A>
struct GdnDecay {
  A* beta;     // [C]
  A* step;     // [C] exp(g_i)
  A* from;     // [C] product of steps 0..i: decay since the start of the chunk
  A* to_end;   // [C] product of steps i+1..n-1: decay until its end
  A* between;  // [C, C] product of steps j+1..i for i >= j
  int chunk_size;

  KOKKOS_INLINE_FUNCTION GdnDecay(Carver<A>& carver, int c)
      : beta(carver.take(c)),
        step(carver.take(c)),
        from(carver.take(c)),
        to_end(carver.take(c)),
        between(carver.take(std::int64_t{c} * c)),
        chunk_size(c) {}

  /// Fills everything for tokens [row, row + n); ends with a barrier.
  template <class T>
  KOKKOS_INLINE_FUNCTION void load(const TeamMember& team, const GdnPointers<T>& in, std::int64_t row,
                                   int head, int n) const {
    const GdnDecay d = *this;
    barrier(team);
    for_each(team, n, [&](int i) {
      const std::int64_t at = (row + i) * in.x.value_heads + head;
      d.beta[i] = in.beta[at];
      d.step[i] = Kokkos::exp(in.g[at]);
    });
    barrier(team);
    once(team, [=]() {
      A product = 1;
      for (int i = 0; i < n; ++i) d.from[i] = product *= d.step[i];
      product = 1;
      for (int i = n - 1; i >= 0; --i) {
        d.to_end[i] = product;
        product *= d.step[i];
      }
    });
    for (int i = 0; i < n; ++i) {
      A* out = d.between + i * d.chunk_size;
      for_each(team, i + 1, [=](int j) { out[j] = j == i ? A(1) : out[j - d.chunk_size] * d.step[i]; });
      barrier(team);
    }
  }
  KOKKOS_INLINE_FUNCTION A last(int n) const { return from[n - 1]; }
};

}  // namespace deltaport::recurrence::portable
