// SPDX-License-Identifier: Apache-2.0
// GDN: operands of a chunk, and its gradients from the sums over value channels. Every decay is a product of
// consecutive exp(g) <= 1 in the order of the tokens, so any g down to -inf is exact and no row depends on a
// later gate. e decay since the chunk's start, f until its end, D between two tokens.
//   A0 = strict_lower(beta_i k_i.k_j D_ij)        P = scale lower(q_i.k_j D_ij)
// Backward, with L = scale lower((do v_new^T) D) and M = -strict_lower((dR v_new^T) D):
//   dq  = scale e (do S^T) + L k                  row = -e (dR S^T) + M k
//   col = f (v_new dh^T) + L^T q + M^T (beta k)   dk = beta row + col       dbeta = v.dR + k.row
// dg_t adds up every decay that step t takes part in and only those: suffix sums of what reads the state,
// prefix sums of what writes it, and pairs i >= t > j. Nothing has to cancel, so strong decay keeps its accuracy.
#pragma once

#include "recurrence/host/kernels/slice.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

template <class T>
struct Gdn {
  using Element = T;
  const Call& call;
  Sizes sizes;
  float *q, *k, *turned_k;                           // [chunk, keys], [chunk, keys], [keys, chunk]
  float* last;                                       // [keys] decay over the whole chunk
  float *beta, *step, *from, *to_end;                // [chunk]
  float *asked_factor, *minus_from, *erased_factor;  // [chunk] scale e, -e, -beta e
  float* between;                                    // [chunk, chunk] D, zero above the diagonal
  float *reads, *writes, *pair_sums;                 // [chunk] parts of dg

  Gdn(const Call& c, Carver& carver) : call(c), sizes(c) {
    const Index matrix = Index{chunk} * sizes.keys;
    q = carver.take(matrix), k = carver.take(matrix), turned_k = carver.take(matrix);
    last = carver.take(sizes.keys);
    asked_factor = carver.take(chunk), minus_from = carver.take(chunk), erased_factor = carver.take(chunk);
    beta = carver.take(chunk), step = carver.take(chunk);
    from = carver.take(chunk), to_end = carver.take(chunk);
    between = carver.take(chunk * chunk);
    reads = carver.take(chunk), writes = carver.take(chunk), pair_sums = carver.take(chunk);
  }

  static constexpr int lines_per_sum = 1;  // fetched ahead, so that all are by the end of a chunk
  Ahead* ahead = nullptr;
  /// Lets the rows of the chunk that follows be fetched.
  void announce(const Place& next, Reads what) const {
    ahead->add(key_input<T>(call, call.q, next), next.n);
    ahead->add(key_input<T>(call, call.k, next), next.n);
    ahead->add(value_input(call.v, next, 0), next.n);
    if (what == Reads::values_and_gradients) ahead->add(value_input(call.d_o, next, 0), next.n);
  }
  const float* asked() const { return q; }
  const float* erased() const { return k; }
  const float* written() const { return k; }
  RowScale asked_scale() const { return {asked_factor}; }
  RowScale written_scale() const { return {to_end}; }
  void scale_written(int rows, int columns, float* x) const { scale_rows(rows, columns, to_end, x); }
  void scale_gradients(int rows, int columns, float* y) const {
    scale_rows(rows, columns, asked_factor, y);
    scale_rows(rows, columns, minus_from, y + rows * columns);
  }
  void scale_erased(int rows, int columns, float* y) const {
    scale_rows(rows, columns, beta, y + rows * columns);
  }
  /// beta v - beta e (k S)
  struct WeightedValues {
    Input<T> v;
    const float *beta, *factor;
    DELTAPORT_HOST_INLINE Vector minus_erased(int i, int j, Vector sum) const {
      return beta[i] * v.at(i, j) + factor[i] * sum;
    }
  };
  WeightedValues weighted_values(const Place& at, int first) const {
    return {value_input(call.v, at, first), beta, erased_factor};
  }
  Input<T> value_input(const void* tensor, const Place& at, int first) const {
    return DELTAPORT_HOST_ISA::value_input<T>(call, tensor, at, first);
  }
  Output<T> value_output(void* tensor, const Place& at) const {
    return {tensor, at.row, call.value_heads, at.head, call.value_dim};
  }
  void write_value_gradients(const Place& at, int slice, const float* dr, bool is_first, float* v_dr) const;

  void prepare(const Place& at, Decays) {
    load_gates(at);
    load_rows(at);
  }
  void pairs(const Place& at, const Pairs& out) const;
  void write_gradients(const Place& at, const Pairs& pairs, const Sums& sums) const;

 private:
  static void scale_rows(int rows, int columns, const float* factor, float* x) {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; j += width)
        store(x + i * columns + j, factor[i] * load(x + i * columns + j));
  }
  void load_gates(const Place& at);
  void load_rows(const Place& at);
  void scale_sums(const Place& at, const Sums& sums) const;
  void pair_gradients(const Place& at, const Pairs& pairs, const Sums& sums) const;
  void write_gate_gradients(const Place& at, const Sums& sums) const;
};

template <class T>
void Gdn<T>::load_gates(const Place& at) {
  for (int i = 0; i < chunk; ++i) {
    const Index row = (at.row + i) * call.value_heads + at.head;
    step[i] = i < at.n ? call.g[row] : 0.0f;
    beta[i] = i < at.n ? call.beta[row] : 0.0f;
  }
  for (int i = 0; i < at.rows; i += width) store(step + i, exponential(load(step + i)));
  float product = 1.0f;
  for (int i = 0; i < at.rows; ++i) from[i] = product *= step[i];
  product = 1.0f;
  for (int i = at.rows - 1; i >= 0; --i) {
    to_end[i] = product;
    product *= step[i];
  }
  for (int j = 0; j < at.rows; j += width) {
    Vector decay{};
    for (int i = 0; i < at.rows; ++i) {
      decay = lanes() + j == i ? splat(1.0f) : decay * step[i];
      store(between + i * chunk + j, decay);
    }
  }
  for (int i = 0; i < at.rows; ++i) {
    asked_factor[i] = call.scale * from[i];
    minus_from[i] = -from[i];
    erased_factor[i] = beta[i] * minus_from[i];
  }
  for (int a = 0; a < sizes.keys; a += width) store(last + a, splat(from[at.n - 1]));
}

template <class T>
void Gdn<T>::load_rows(const Place& at) {
  copy_rows(key_input<T>(call, call.q, at), at.n, at.rows, sizes.keys, q);
  copy_rows(key_input<T>(call, call.k, at), at.n, at.rows, sizes.keys, k);
}

template <class T>
void Gdn<T>::pairs(const Place& at, const Pairs& out) const {
  transpose(at.rows, sizes.keys, k, sizes.keys, turned_k, chunk);
  for (int i = 0; i < chunk * chunk; i += width)
    store(out.strict + i, Vector{}), store(out.scores + i, Vector{});
  const float *decays = between, *weight = beta;
  const float scale = call.scale;
  const All all{sizes.keys};
  lower_product(
      at.rows,
      [=](int i, int j, Vector sum) {
        const int to = i * chunk + j;
        store(out.scores + to, lanes() + j <= i ? scale * sum * load(decays + to) : Vector{});
      },
      plain(q, sizes.keys, turned_k, chunk, all));
  lower_product(
      at.rows,
      [=](int i, int j, Vector sum) {
        const int to = i * chunk + j;
        store(out.strict + to, lanes() + j < i ? (weight[i] * sum) * load(decays + to) : Vector{});
      },
      plain(k, sizes.keys, turned_k, chunk, all));
}

template <class T>
void Gdn<T>::write_value_gradients(const Place& at, int slice, const float* dr, bool is_first,
                                   float* v_dr) const {
  const int columns = sizes.columns(slice), first = slice * slice_width;
  const Input<T> v = value_input(call.v, at, first);
  const Output<T> dv = value_output(call.dv, at);
  for (int i = 0; i < at.n; ++i) {
    Vector sum{};
    for (int j = 0; j < columns; j += width) {
      const Vector x = load(dr + i * columns + j);
      dv.put(i, first + j, beta[i] * x);
      sum += v.at(i, j) * x;
    }
    const float total = sum_of(sum);
    v_dr[i] = is_first ? total : v_dr[i] + total;
  }
}

/// The part of col that passes through the state, and what such parts of dq, row and col give to dg.
template <class T>
void Gdn<T>::scale_sums(const Place& at, const Sums& sums) const {
  const int keys = sizes.keys;
  for (int i = 0; i < at.rows; ++i) {
    const float *dq = sums.rows + i * keys, *row = sums.rows + (at.rows + i) * keys;
    float* column = sums.columns + i * keys;
    Vector asks{}, erases{}, writes_here{};
    for (int a = 0; a < keys; a += width) {
      const Vector key = load(k + i * keys + a), x = to_end[i] * load(column + a);
      store(column + a, x);
      asks += load(q + i * keys + a) * load(dq + a);
      erases += key * load(row + a);
      writes_here += key * x;
    }
    reads[i] = sum_of(asks + beta[i] * erases), writes[i] = sum_of(writes_here);
  }
}

/// sums.do_v becomes L, sums.dr_v M and pairs.strict beta M; pair_sums[t] = sum over i >= t > j of what the pair (i, j) gives to dg.
template <class T>
void Gdn<T>::pair_gradients(const Place& at, const Pairs& pairs, const Sums& sums) const {
  Vector below[chunk / width] = {};
  const float scale = call.scale;
  for (int i = at.rows - 1; i >= 0; --i) {
    Vector total{};
    for (int j = 0; j < at.rows; j += width) {
      const int to = i * chunk + j;
      if (j > i) {
        store(sums.do_v + to, Vector{}), store(sums.dr_v + to, Vector{});
        continue;
      }
      const Vector decay = load(between + to);
      const Vector x = load(sums.do_v + to), y = load(sums.dr_v + to);
      const Integers earlier = lanes() + j < i;
      const Vector here = x * load(pairs.scores + to) - y * load(pairs.strict + to);
      Vector& sum = below[j / width];
      sum += earlier ? here : Vector{};
      total += earlier ? sum : Vector{};
      store(sums.do_v + to, lanes() + j <= i ? scale * x * decay : Vector{});
      const Vector lower = earlier ? -(y * decay) : Vector{};
      store(sums.dr_v + to, lower), store(pairs.strict + to, beta[i] * lower);
    }
    pair_sums[i] = sum_of(total);
  }
}

template <class T>
void Gdn<T>::write_gate_gradients(const Place& at, const Sums& sums) const {
  Vector whole{};
  for (int a = 0; a < sizes.keys; a += width) whole += load(sums.whole + a);
  float later = 0.0f;
  for (int i = at.n - 1; i >= 0; --i) {
    later += reads[i];
    pair_sums[i] += later;
  }
  float earlier = last[0] * sum_of(whole);
  for (int i = 0; i < at.n; ++i) {
    const Index to = (at.row + i) * call.value_heads + at.head;
    call.dg[to] = pair_sums[i] + earlier;
    earlier += writes[i];
    Vector key_row{};
    for (int a = 0; a < sizes.keys; a += width)
      key_row += load(k + i * sizes.keys + a) * load(sums.rows + (at.rows + i) * sizes.keys + a);
    call.dbeta[to] = sums.v_dr[i] + sum_of(key_row);
  }
}

template <class T>
void Gdn<T>::write_gradients(const Place& at, const Pairs& pairs, const Sums& sums) const {
  const int keys = sizes.keys, rows = at.rows, n = at.n;
  scale_sums(at, sums);
  pair_gradients(at, pairs, sums);
  const Output<T> dq(call.dq, at.row, call.value_heads, at.head, call.key_dim, call.wide_keys);
  const Output<T> dk(call.dk, at.row, call.value_heads, at.head, call.key_dim, call.wide_keys);
  const float *through_q = sums.rows, *columns = sums.columns, *weight = beta;
  float* row = sums.rows + rows * keys;
  product(
      rows, keys,
      [=](int i, int j, Vector sum) {
        if (i < n) dq.put(i, j, load(through_q + i * keys + j) + sum);
      },
      plain(sums.do_v, chunk, k, keys, UpToRow{}));
  product(
      rows, keys,
      [=](int i, int j, Vector sum) { store(row + i * keys + j, load(row + i * keys + j) + sum); },
      plain(sums.dr_v, chunk, k, keys, UpToRow{}));
  product(
      rows, keys,
      [=](int i, int j, Vector sum) {
        const int from_row = i * keys + j;
        if (i < n) dk.put(i, j, weight[i] * load(row + from_row) + (load(columns + from_row) + sum));
      },
      turned(sums.do_v, chunk, q, keys, FromRow{rows}), turned(pairs.strict, chunk, k, keys, FromRow{rows}));
  write_gate_gradients(at, sums);
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
