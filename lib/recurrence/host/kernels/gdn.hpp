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
  Prepared ops;
  float *beta, *step, *from, *to_end;  // [chunk]
  float* between;                      // [chunk, chunk] D, zero above the diagonal
  float *reads, *writes, *pair_sums;   // [chunk] parts of dg

  Gdn(const Call& c, Carver& carver) : call(c), sizes(c), ops(carver, sizes) {
    beta = carver.take(chunk), step = carver.take(chunk);
    from = carver.take(chunk), to_end = carver.take(chunk);
    between = carver.take(chunk * chunk);
    reads = carver.take(chunk), writes = carver.take(chunk), pair_sums = carver.take(chunk);
  }

  /// beta v, row by row.
  struct WeightedValues {
    Input<T> v;
    const float* beta;
    DELTAPORT_HOST_INLINE Vector at(int i, int j) const { return beta[i] * v.at(i, j); }
  };
  WeightedValues weighted_values(const Place& at, int first) const {
    return {value_input(call.v, at, first), beta};
  }
  Input<T> value_input(const void* tensor, const Place& at, int first) const {
    return DELTAPORT_HOST_ISA::value_input<T>(call, tensor, at, first);
  }
  Output<T> value_output(void* tensor, const Place& at) const {
    return {tensor, at.row, call.value_heads, at.head, call.value_dim};
  }
  void write_value_gradients(const Place& at, int slice, const float* dr, float* v_dr) const;

  void prepare(const Place& at) {
    load_gates(at);
    load_rows(at);
  }
  void pairs(const Place& at, const Pairs& out) const;
  void write_gradients(const Place& at, const Pairs& pairs, const Sums& sums) const;

 private:
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
  for (int a = 0; a < sizes.keys; a += width) store(ops.last + a, splat(from[at.n - 1]));
}

template <class T>
void Gdn<T>::load_rows(const Place& at) {
  const Input<T> q_in = key_input<T>(call, call.q, at), k_in = key_input<T>(call, call.k, at);
  const int keys = sizes.keys;
  for (int i = 0; i < at.rows; ++i) {
    const float asked = call.scale * from[i], erased = -from[i];
    for (int a = 0; a < keys; a += width) {
      const Vector q = i < at.n ? q_in.at(i, a) : Vector{}, k = i < at.n ? k_in.at(i, a) : Vector{};
      const int to = i * keys + a;
      const Vector bk = beta[i] * k;
      store(ops.q + to, q), store(ops.k + to, k), store(ops.bk + to, bk);
      store(ops.asked + to, asked * q), store(ops.erased + to, erased * bk);
      store(ops.written + to, to_end[i] * k);
    }
  }
}

template <class T>
void Gdn<T>::pairs(const Place& at, const Pairs& out) const {
  transpose(at.rows, sizes.keys, ops.k, sizes.keys, ops.turned, chunk);
  for (int i = 0; i < chunk * chunk; i += width)
    store(out.strict + i, Vector{}), store(out.scores + i, Vector{});
  const float* decays = between;
  const float scale = call.scale;
  const All all{sizes.keys};
  lower_product(
      at.rows,
      [=](int i, int j, Vector sum) {
        const int to = i * chunk + j;
        store(out.scores + to, lanes() + j <= i ? scale * sum * load(decays + to) : Vector{});
      },
      plain(ops.q, sizes.keys, ops.turned, chunk, all));
  lower_product(
      at.rows,
      [=](int i, int j, Vector sum) {
        const int to = i * chunk + j;
        store(out.strict + to, lanes() + j < i ? sum * load(decays + to) : Vector{});
      },
      plain(ops.bk, sizes.keys, ops.turned, chunk, all));
}

template <class T>
void Gdn<T>::write_value_gradients(const Place& at, int slice, const float* dr, float* v_dr) const {
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
    v_dr[i] = slice == 0 ? total : v_dr[i] + total;
  }
}

/// The parts of dq, row and col that pass through the state, and what they give to dg.
template <class T>
void Gdn<T>::scale_sums(const Place& at, const Sums& sums) const {
  const int keys = sizes.keys;
  for (int i = 0; i < at.rows; ++i) {
    const float asked = call.scale * from[i], erased = -from[i], written = to_end[i];
    Vector read{}, write{};
    for (int a = 0; a < keys; a += width) {
      float* dq = sums.rows + i * keys + a;
      float* row = sums.rows + (at.rows + i) * keys + a;
      float* column = sums.columns + i * keys + a;
      const Vector x = asked * load(dq), y = erased * load(row), z = written * load(column);
      store(dq, x), store(row, y), store(column, z);
      read += load(ops.q + i * keys + a) * x + load(ops.bk + i * keys + a) * y;
      write += load(ops.k + i * keys + a) * z;
    }
    reads[i] = sum_of(read), writes[i] = sum_of(write);
  }
}

/// sums.do_v becomes L and sums.dr_v M; pair_sums[t] = sum over i >= t > j of what the pair (i, j) gives to dg.
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
      store(sums.dr_v + to, earlier ? -(y * decay) : Vector{});
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
  float earlier = ops.last[0] * sum_of(whole);
  for (int i = 0; i < at.n; ++i) {
    const Index to = (at.row + i) * call.value_heads + at.head;
    call.dg[to] = pair_sums[i] + earlier;
    earlier += writes[i];
    Vector key_row{};
    for (int a = 0; a < sizes.keys; a += width)
      key_row += load(ops.k + i * sizes.keys + a) * load(sums.rows + (at.rows + i) * sizes.keys + a);
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
      plain(sums.do_v, chunk, ops.k, keys, UpToRow{}));
  product(
      rows, keys,
      [=](int i, int j, Vector sum) { store(row + i * keys + j, load(row + i * keys + j) + sum); },
      plain(sums.dr_v, chunk, ops.k, keys, UpToRow{}));
  product(
      rows, keys,
      [=](int i, int j, Vector sum) {
        const int from_row = i * keys + j;
        if (i < n) dk.put(i, j, weight[i] * load(row + from_row) + (load(columns + from_row) + sum));
      },
      turned(sums.do_v, chunk, ops.q, keys, FromRow{rows}),
      turned(sums.dr_v, chunk, ops.bk, keys, FromRow{rows}));
  write_gate_gradients(at, sums);
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
