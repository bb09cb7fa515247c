// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/vector_exp.hpp"
#include "deltaport/recurrence/recurrence.hpp"
#include "recurrence/extents.hpp"
#include "recurrence/portable/team.hpp"

namespace deltaport::recurrence::portable {

/// Input pointers of one GDN2 call.
template <class T>
struct Gdn2Pointers {
  using A = Accumulate<T>;
  Extents x;
  const T *q, *k, *v, *b, *w;
  const A *g, *initial_state;
  A scale;
  int chunk_size;

  Gdn2Pointers() = default;
  Gdn2Pointers(const Extents& extents, const Gdn2Inputs<T>& in, const Options& options)
      : x(extents),
        q(in.q.data()),
        k(in.k.data()),
        v(in.v.data()),
        b(in.b.data()),
        w(in.w.data()),
        g(in.g.data()),
        initial_state(in.initial_state.data()),
        scale(static_cast<A>(options.scale)),
        chunk_size(options.chunk_size) {}

  KOKKOS_INLINE_FUNCTION std::int64_t key_at(std::int64_t row, int head) const {
    return (row * x.key_heads + x.key_head(head)) * x.key_dim;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t value_at(std::int64_t row, int head) const {
    return (row * x.value_heads + head) * x.value_dim;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t gate_at(std::int64_t row, int head) const {
    return (row * x.gate_heads + x.gate_head(head)) * x.key_dim;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t pair_at(std::int64_t row, int head) const {
    return (row * x.value_heads + head) * chunk_size;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t key_stride() const { return std::int64_t{x.key_heads} * x.key_dim; }
  KOKKOS_INLINE_FUNCTION std::int64_t value_stride() const {
    return std::int64_t{x.value_heads} * x.value_dim;
  }
  KOKKOS_INLINE_FUNCTION std::int64_t gate_stride() const { return std::int64_t{x.gate_heads} * x.key_dim; }
  KOKKOS_INLINE_FUNCTION std::int64_t pair_stride() const { return std::int64_t{x.value_heads} * chunk_size; }
};

/// Keys, queries, erase keys and decays of one chunk, per channel, rows of K elements. As for GDN every decay
/// is a product of consecutive exp(g) in the order of the tokens, never a difference of cumulated sums.
template <class A>
struct Gdn2Channels {
  A* keys;    // [C, K] k
  A* qb;      // [2C, K] q, then b k
  A* step;    // [C, K] exp(g_i)
  A* from;    // [C, K] product of steps 0..i
  A* to_end;  // [C, K] product of steps i+1..n-1
  int dim;

  KOKKOS_INLINE_FUNCTION Gdn2Channels(Carver<A>& carver, int c, int k)
      : keys(carver.take(std::int64_t{c} * k)),
        qb(carver.take(2 * std::int64_t{c} * k)),
        step(carver.take(std::int64_t{c} * k)),
        from(carver.take(std::int64_t{c} * k)),
        to_end(carver.take(std::int64_t{c} * k)),
        dim(k) {}

  KOKKOS_INLINE_FUNCTION const A* queries() const { return qb; }
  KOKKOS_INLINE_FUNCTION const A* erased(int n) const { return qb + std::int64_t{n} * dim; }

  /// Fills everything for tokens [row, row + n); starts and ends with a barrier.
  template <class T>
  KOKKOS_INLINE_FUNCTION void load(const TeamMember& team, const Gdn2Pointers<T>& in, std::int64_t row,
                                   int head, int n) const {
    barrier(team);
    const int columns = dim;
    const T* k_in = in.k + in.key_at(row, head);
    const T* q_in = in.q + in.key_at(row, head);
    const T* b_in = in.b + in.gate_at(row, head);
    const std::int64_t key_stride = in.key_stride();
    const std::int64_t gate_stride = in.gate_stride();
    A* k_out = keys;
    A* q_out = qb;
    A* bk_out = qb + std::int64_t{n} * dim;
    for_elements(team, n, columns, [=](int i, int a) {
      const A key = static_cast<A>(k_in[i * key_stride + a]);
      k_out[i * columns + a] = key;
      q_out[i * columns + a] = static_cast<A>(q_in[i * key_stride + a]);
      bk_out[i * columns + a] = static_cast<A>(b_in[i * gate_stride + a]) * key;
    });
    load_steps(team, in, row, head, n);
    decays(team, n);
    barrier(team);
  }

 private:
  template <class T>
  KOKKOS_INLINE_FUNCTION void load_steps(const TeamMember& team, const Gdn2Pointers<T>& in, std::int64_t row,
                                         int head, int n) const {
    const A* g = in.g + in.gate_at(row, head);
    const std::int64_t stride = in.gate_stride();
    const int columns = dim;
    A* out = step;
    KOKKOS_IF_ON_HOST((static_cast<void>(team); for (int i = 0; i < n; ++i)
                           vector_exp(columns, g + i * stride, out + std::int64_t{i} * columns);))
    KOKKOS_IF_ON_DEVICE(
        (for_elements(team, n, columns,
                      [=](int i, int a) { out[i * columns + a] = Kokkos::exp(g[i * stride + a]); });
         barrier(team);))
  }

  // A lane owns a channel, so no barrier is needed from row to row.
  KOKKOS_INLINE_FUNCTION void decays(const TeamMember& team, int n) const {
    const int columns = dim;
    const A* steps = step;
    A* down = from;
    A* up = to_end;
    for_each(team, columns, [=](int a) { down[a] = steps[a]; });
    for (int i = 1; i < n; ++i)
      for_each(team, columns,
               [=](int a) { down[i * columns + a] = down[(i - 1) * columns + a] * steps[i * columns + a]; });
    for_each(team, columns, [=](int a) { up[(n - 1) * columns + a] = A(1); });
    for (int i = n - 2; i >= 0; --i)
      for_each(team, columns, [=](int a) {
        up[i * columns + a] = up[(i + 1) * columns + a] * steps[(i + 1) * columns + a];
      });
  }
};

/// One off-diagonal block of pairs: rows [anchor, anchor + rows) against columns [begin, anchor). The decay
/// between them factors into a part after the anchor (rows) and one before it (columns); both lie in the past
/// of every row.
struct PairBlock {
  int begin, anchor, rows;
  KOKKOS_INLINE_FUNCTION int columns() const { return anchor - begin; }
};

inline constexpr int pair_block = 16;

/// f(block) for every off-diagonal block of a chunk of n tokens: halves, then quarters, down to blocks of 16.
template <class F>
KOKKOS_INLINE_FUNCTION void for_pair_blocks(int chunk_size, int n, const F& f) {
  for (int half = chunk_size / 2; half >= pair_block; half /= 2)
    for (int begin = 0; begin + half < n; begin += 2 * half) {
      const int left = n - begin - half;
      f(PairBlock{begin, begin + half, left < half ? left : half});
    }
}

/// Operands of a block: rows [2 rows, K] = [q; b k] decayed from the anchor on, columns [columns, K] = k
/// decayed up to it.
template <class A>
KOKKOS_INLINE_FUNCTION void scale_pair_block(const TeamMember& team, const Gdn2Channels<A>& x, int n,
                                             const PairBlock& block, A* rows, A* columns, A* running) {
  const int dim = x.dim;
  const A* step = x.step;
  const A* q = x.qb;
  const A* bk = x.erased(n);
  const A* k = x.keys;
  barrier(team);
  for (int r = 0; r < block.rows; ++r) {
    const int i = block.anchor + r;
    A* q_out = rows + r * dim;
    A* bk_out = rows + (block.rows + r) * dim;
    for_each(team, dim, [=](int a) {
      const A decay = r == 0 ? step[i * dim + a] : running[a] * step[i * dim + a];
      running[a] = decay;
      q_out[a] = q[i * dim + a] * decay;
      bk_out[a] = bk[i * dim + a] * decay;
    });
  }
  for (int j = block.anchor - 1; j >= block.begin; --j) {
    A* out = columns + (j - block.begin) * dim;
    const bool last = j + 1 == block.anchor;
    for_each(team, dim, [=](int a) {
      const A decay = last ? A(1) : running[a] * step[(j + 1) * dim + a];
      running[a] = decay;
      out[a] = k[j * dim + a] * decay;
    });
  }
}

}  // namespace deltaport::recurrence::portable
