// SPDX-License-Identifier: Apache-2.0
// GDN2: operands of a chunk, and its gradients from the sums over value channels. As for GDN every decay is a
// product of consecutive exp(g), here per channel, so the decay between two tokens does not leave a product of
// k and q. Rows [anchor, ..) against columns before the anchor: the decay splits into a part after the anchor,
// which scales the row, and one before it, which scales the column, and a product of matrices remains. That
// serves all pairs but those within blocks of 16 tokens (gdn2_pairs.hpp).
#pragma once

#include "recurrence/host/kernels/gdn2_pairs.hpp"
#include "recurrence/host/kernels/slice.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

/// Rows [anchor, anchor + rows) against columns [begin, anchor).
struct PairBlock {
  int begin, anchor, rows;
  int columns() const { return anchor - begin; }
};
/// f(block): halves, then quarters of the chunk.
template <class F>
DELTAPORT_HOST_INLINE void for_pair_blocks(int rows, const F& f) {
  for (int half = chunk / 2; half >= token_block; half /= 2)
    for (int begin = 0; begin + half < rows; begin += 2 * half) {
      const int left = rows - begin - half;
      f(PairBlock{begin, begin + half, left < half ? left : half});
    }
}

template <class T>
struct Gdn2 {
  using Element = T;
  const Call& call;
  Sizes sizes;
  float *q, *k, *bk, *turned_k;                    // [chunk, keys]; [keys, chunk] scratch for k^T
  float *asked_rows, *erased_rows, *written_rows;  // [chunk, keys] scale e q, -e b k, f k
  float* last;                                     // [keys] decay over the whole chunk
  float *step, *from, *to_end;  // [chunk, keys] exp(g); products of steps 0..i; of steps i+1..
  float *row_decay, *block_q,
      *block_bk;                  // [chunk / 2, keys] of a block: decay from its anchor on, with q, b k
  float *column_decay, *columns;  // [chunk / 2, keys] decay up to the anchor, with k
  float *dg, *terms;              // [chunk, keys], [chunk / 2, keys]
  float* running;                 // [keys]
  PairSums* pair_sums;

  Gdn2(const Call& c, Carver& carver) : call(c), sizes(c) {
    const Index matrix = Index{chunk} * sizes.keys;
    q = carver.take(matrix), k = carver.take(matrix), bk = carver.take(matrix),
    turned_k = carver.take(matrix);
    asked_rows = carver.take(matrix), erased_rows = carver.take(matrix), written_rows = carver.take(matrix);
    last = carver.take(sizes.keys);
    step = carver.take(matrix), from = carver.take(matrix), to_end = carver.take(matrix);
    row_decay = carver.take(matrix / 2), block_q = carver.take(matrix / 2);
    block_bk = carver.take(matrix / 2);
    column_decay = carver.take(matrix / 2), columns = carver.take(matrix / 2);
    dg = carver.take(matrix), terms = carver.take(matrix / 2), running = carver.take(sizes.keys);
    pair_sums = reinterpret_cast<PairSums*>(carver.take(sizeof(PairSums) / sizeof(float)));
  }

  static constexpr int lines_per_sum = 2;
  Ahead* ahead = nullptr;
  /// Lets the rows of the chunk that follows be fetched.
  void announce(const Place& next, Reads what) const {
    ahead->add(key_input<T>(call, call.q, next), next.n);
    ahead->add(key_input<T>(call, call.k, next), next.n);
    ahead->add(gate_input<float>(call, call.g, next), next.n);
    ahead->add(gate_input<T>(call, call.b, next), next.n);
    ahead->add(value_input(call.w, next, 0), next.n);
    ahead->add(value_input(call.v, next, 0), next.n);
    if (what == Reads::values_and_gradients) ahead->add(value_input(call.d_o, next, 0), next.n);
  }
  const float* asked() const { return asked_rows; }
  const float* erased() const { return erased_rows; }
  const float* written() const { return written_rows; }
  NoScale asked_scale() const { return {}; }
  NoScale written_scale() const { return {}; }
  void scale_written(int, int, float*) const {}
  void scale_gradients(int, int, float*) const {}
  void scale_erased(int, int, float*) const {}
  /// w v - (b k e) S
  struct WeightedValues {
    Input<T> v, w;
    DELTAPORT_HOST_INLINE Vector minus_erased(int i, int j, Vector sum) const {
      return w.at(i, j) * v.at(i, j) + sum;
    }
  };
  WeightedValues weighted_values(const Place& at, int first) const {
    return {value_input(call.v, at, first), value_input(call.w, at, first)};
  }
  Input<T> value_input(const void* tensor, const Place& at, int first) const {
    return DELTAPORT_HOST_ISA::value_input<T>(call, tensor, at, first);
  }
  Output<T> value_output(void* tensor, const Place& at) const {
    return {tensor, at.row, call.value_heads, at.head, call.value_dim};
  }
  void write_value_gradients(const Place& at, int slice, const float* dr, bool, float*) const {
    const int w_columns = sizes.columns(slice), first = slice * slice_width;
    const WeightedValues in = weighted_values(at, first);
    const Output<T> dv = value_output(call.dv, at), dw = value_output(call.dw, at);
    for (int i = 0; i < at.n; ++i)
      for (int j = 0; j < w_columns; j += width) {
        const Vector x = load(dr + i * w_columns + j);
        dv.put(i, first + j, in.w.at(i, j) * x);
        dw.put(i, first + j, in.v.at(i, j) * x);
      }
  }

  /// The decays from and to_end are kept for all tokens where backward will need them.
  void prepare(const Place& at, Decays decays);
  void pairs(const Place& at, const Pairs& out) const;
  void write_gradients(const Place& at, const Pairs& pairs, const Sums& sums) const;

 private:
  void scale_block(const PairBlock& block, Decays decays) const;
  void through_state(const Place& at, const Sums& sums) const;
  void mask_pairs(const Place& at, const Sums& sums) const;
  void block_gradients(const PairBlock& block, const Sums& sums, float* dbk) const;
  void diagonal(const Place& at, const Sums& sums, float* dbk) const;
  void write(const Place& at, const Sums& sums, const float* dbk) const;
};

template <class T>
void Gdn2<T>::prepare(const Place& at, Decays decays) {
  const Input<T> q_in = key_input<T>(call, call.q, at), k_in = key_input<T>(call, call.k, at);
  const Input<T> b_in = gate_input<T>(call, call.b, at);
  const Input<float> g_in = gate_input<float>(call, call.g, at);
  const int keys = sizes.keys, apart = decays == Decays::kept ? keys : 0;
  for (int i = 0; i < at.rows; ++i)
    for (int a = 0; a < keys; a += width) {
      const int to = i * keys + a, here = i * apart + a;
      const bool given = i < at.n;
      const Vector query = given ? q_in.at(i, a) : Vector{}, key = given ? k_in.at(i, a) : Vector{};
      const Vector erase = given ? b_in.at(i, a) * key : Vector{};
      const Vector decay = given ? exponential(g_in.at(i, a)) : splat(1.0f);
      const Vector so_far = i == 0 ? decay : load(from + here - apart) * decay;
      store(q + to, query), store(k + to, key), store(bk + to, erase);
      store(step + to, decay), store(from + here, so_far);
      store(asked_rows + to, call.scale * (query * so_far)), store(erased_rows + to, -(erase * so_far));
    }
  for (int i = at.rows - 1; i >= 0; --i)
    for (int a = 0; a < keys; a += width) {
      const int to = i * keys + a;
      const Vector decay = i == at.rows - 1 ? splat(1.0f) : load(to_end + to + keys) * load(step + to + keys);
      store(to_end + to, decay), store(written_rows + to, load(k + to) * decay);
    }
  for (int a = 0; a < keys; a += width) store(last + a, load(from + (at.rows - 1) * apart + a));
}

template <class T>
void Gdn2<T>::scale_block(const PairBlock& block, Decays decays) const {
  const int keys = sizes.keys, apart = decays == Decays::kept ? keys : 0;
  for (int r = 0; r < block.rows; ++r)
    for (int a = 0; a < keys; a += width) {
      const int to = r * keys + a, token = (block.anchor + r) * keys + a, here = r * apart + a;
      const Vector one = load(step + token);
      const Vector decay = r == 0 ? one : load(row_decay + here - apart) * one;
      store(row_decay + here, decay);
      store(block_q + to, load(q + token) * decay), store(block_bk + to, load(bk + token) * decay);
    }
  for (int c = block.columns() - 1; c >= 0; --c)
    for (int a = 0; a < keys; a += width) {
      const int to = c * keys + a, token = (block.begin + c) * keys + a, here = c * apart + a;
      const bool adjacent = c == block.columns() - 1;
      const Vector decay =
          adjacent ? splat(1.0f) : load(column_decay + here + apart) * load(step + token + keys);
      store(column_decay + here, decay), store(columns + to, load(k + token) * decay);
    }
}

template <class T>
void Gdn2<T>::pairs(const Place& at, const Pairs& out) const {
  for (int i = 0; i < chunk * chunk; i += width)
    store(out.strict + i, Vector{}), store(out.scores + i, Vector{});
  const int keys = sizes.keys;
  const float scale = call.scale;
  for_pair_blocks(at.rows, [&](const PairBlock& block) {
    scale_block(block, Decays::passing);
    transpose(block.columns(), keys, columns, keys, turned_k, chunk);
    float* scores = out.scores + block.anchor * chunk + block.begin;
    float* strict = out.strict + block.anchor * chunk + block.begin;
    product(
        block.rows, block.columns(),
        [=](int i, int j, Vector sum) { store(scores + i * chunk + j, scale * sum); },
        plain(block_q, keys, turned_k, chunk, All{keys}));
    product(
        block.rows, block.columns(), [=](int i, int j, Vector sum) { store(strict + i * chunk + j, sum); },
        plain(block_bk, keys, turned_k, chunk, All{keys}));
  });
  for (int i = 0; i < at.rows; i += token_block)
    diagonal_pairs(keys, q + i * keys, bk + i * keys, k + i * keys, step + i * keys, scale,
                   out.scores + i * chunk + i, out.strict + i * chunk + i, *pair_sums);
}

/// The parts of dq, d(b k) and dk that pass through the state, and what they give to dg: suffix sums of what
/// reads the state, prefix sums of what writes it.
template <class T>
void Gdn2<T>::through_state(const Place& at, const Sums& sums) const {
  const int keys = sizes.keys;
  float* d_erased = sums.rows + at.rows * keys;
  for (int i = at.rows - 1; i >= 0; --i)
    for (int a = 0; a < keys; a += width) {
      const int to = i * keys + a;
      const Vector decay = load(from + to);
      const Vector x = (call.scale * decay) * load(sums.rows + to), y = -(decay * load(d_erased + to));
      store(sums.rows + to, x), store(d_erased + to, y);
      const Vector here = load(q + to) * x + load(bk + to) * y;
      store(dg + to, i == at.rows - 1 ? here : load(dg + to + keys) + here);
    }
  for (int a = 0; a < keys; a += width) store(running + a, load(last + a) * load(sums.whole + a));
  for (int i = 0; i < at.rows; ++i)
    for (int a = 0; a < keys; a += width) {
      const int to = i * keys + a;
      const Vector x = load(to_end + to) * load(sums.columns + to);
      store(sums.columns + to, x);
      const Vector before = load(running + a);
      store(dg + to, load(dg + to) + before);
      store(running + a, before + load(k + to) * x);
    }
}

/// sums.do_v becomes L = scale lower, sums.dr_v becomes M = -strict lower.
template <class T>
void Gdn2<T>::mask_pairs(const Place& at, const Sums& sums) const {
  for (int i = 0; i < at.rows; ++i)
    for (int j = 0; j < at.rows; j += width) {
      float *upper = sums.do_v + i * chunk + j, *lower = sums.dr_v + i * chunk + j;
      store(upper, lanes() + j <= i ? call.scale * load(upper) : Vector{});
      store(lower, lanes() + j < i ? -load(lower) : Vector{});
    }
}

template <class T>
void Gdn2<T>::block_gradients(const PairBlock& block, const Sums& sums, float* dbk) const {
  scale_block(block, Decays::kept);
  const int keys = sizes.keys, rows = block.rows, count = block.columns();
  const float* upper = sums.do_v + block.anchor * chunk + block.begin;
  const float* lower = sums.dr_v + block.anchor * chunk + block.begin;
  float *dq_rows = sums.rows + block.anchor * keys, *dbk_rows = dbk + block.anchor * keys;
  float* dk_rows = sums.columns + block.begin * keys;
  const float *rd = row_decay, *cd = column_decay;
  const float *block_asked = block_q, *block_erased = block_bk, *block_k = columns;
  float* t = terms;
  product(
      rows, keys,
      [=](int i, int j, Vector sum) {
        const int to = i * keys + j;
        store(dq_rows + to, load(dq_rows + to) + load(rd + to) * sum);
        store(t + to, load(block_asked + to) * sum);
      },
      plain(upper, chunk, columns, keys, All{count}));
  product(
      rows, keys,
      [=](int i, int j, Vector sum) {
        const int to = i * keys + j;
        store(dbk_rows + to, load(dbk_rows + to) + load(rd + to) * sum);
        store(t + to, load(t + to) + load(block_erased + to) * sum);
      },
      plain(lower, chunk, columns, keys, All{count}));
  for (int i = rows - 1; i >= 0; --i)
    for (int a = 0; a < keys; a += width) {
      float *here = t + i * keys + a, *out = dg + (block.anchor + i) * keys + a;
      const Vector sum = i == rows - 1 ? load(here) : load(here) + load(here + keys);
      store(here, sum), store(out, load(out) + sum);
    }
  product(
      count, keys,
      [=](int i, int j, Vector sum) {
        const int to = i * keys + j;
        store(dk_rows + to, load(dk_rows + to) + load(cd + to) * sum);
        store(t + to, load(block_k + to) * sum);
      },
      turned(upper, chunk, block_q, keys, All{rows}), turned(lower, chunk, block_bk, keys, All{rows}));
  for (int i = 0; i + 1 < count; ++i)
    for (int a = 0; a < keys; a += width) {
      float *here = t + i * keys + a, *out = dg + (block.begin + i + 1) * keys + a;
      const Vector sum = i == 0 ? load(here) : load(here) + load(here - keys);
      store(here, sum), store(out, load(out) + sum);
    }
}

template <class T>
void Gdn2<T>::diagonal(const Place& at, const Sums& sums, float* dbk) const {
  const int keys = sizes.keys;
  for (int i = 0; i < at.rows; i += token_block) {
    const int to = i * keys, pair = i * chunk + i;
    diagonal_gradients(
        keys, sums.do_v + pair, sums.dr_v + pair,
        {q + to, bk + to, k + to, step + to, sums.rows + to, dbk + to, sums.columns + to, dg + to});
  }
}

template <class T>
void Gdn2<T>::write(const Place& at, const Sums& sums, const float* dbk) const {
  const Output<T> dq(call.dq, at.row, call.value_heads, at.head, call.key_dim, call.wide_keys);
  const Output<T> dk(call.dk, at.row, call.value_heads, at.head, call.key_dim, call.wide_keys);
  const Output<T> db(call.db, at.row, call.value_heads, at.head, call.key_dim, call.wide_gates);
  const Output<float> gates(call.dg, at.row, call.value_heads, at.head, call.key_dim);
  const Input<T> b = gate_input<T>(call, call.b, at);
  for (int i = 0; i < at.n; ++i)
    for (int a = 0; a < sizes.keys; a += width) {
      const int to = i * sizes.keys + a;
      const Vector x = load(dbk + to);
      dq.put(i, a, load(sums.rows + to));
      dk.put(i, a, b.at(i, a) * x + load(sums.columns + to));
      db.put(i, a, load(k + to) * x);
      gates.put(i, a, load(dg + to));
    }
}

template <class T>
void Gdn2<T>::write_gradients(const Place& at, const Pairs&, const Sums& sums) const {
  float* dbk = sums.rows + at.rows * sizes.keys;
  through_state(at, sums);
  mask_pairs(at, sums);
  for_pair_blocks(at.rows, [&](const PairBlock& block) { block_gradients(block, sums, dbk); });
  diagonal(at, sums, dbk);
  write(at, sums, dbk);
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
