// SPDX-License-Identifier: Apache-2.0
// What a chunk does with one slice of value channels, for both rules. With asked = scale e q, erased = -e b k
// (GDN: b = beta), written = f k and the weight of v (GDN: beta, GDN2: the write gate w):
//   R = weight v + erased S       v_new = (I + A0)^-1 R
//   o = asked S + P v_new         S <- last S + written^T v_new
// GDN2 has these operands as matrices. GDN's factors are the same for all channels of a row, so its operands
// are q and k themselves and the factors are applied to the products, which are already in registers.
#pragma once

#include "recurrence/host/kernels/layout.hpp"
#include "recurrence/host/kernels/triangle.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

/// x [rows, columns] = v_new. state is the slice's S.
template <class Rule>
void new_values(const Rule& rule, const Place& at, const Pairs& pairs, int slice, const float* state,
                float* x) {
  const int columns = rule.sizes.columns(slice);
  const auto weighted = rule.weighted_values(at, slice * slice_width);
  product(
      at.rows, columns,
      [=](int i, int j, Vector sum) {
        store(x + i * columns + j, i < at.n ? weighted.minus_erased(i, j, sum) : Vector{});
      },
      plain(rule.erased(), rule.sizes.keys, state, columns, All{rule.sizes.keys}));
  solve(at.rows, columns, pairs.strict, x, columns);
}

template <class Rule>
void outputs(const Rule& rule, const Place& at, const Pairs& pairs, int slice, const float* state,
             const float* x) {
  const int columns = rule.sizes.columns(slice);
  const auto o = rule.value_output(rule.call.o, at);
  const int first = slice * slice_width, n = at.n;
  Ahead* ahead = rule.ahead;
  product(
      at.rows, columns,
      [=](int i, int j, Vector sum) {
        ahead->fetch(Rule::lines_per_sum);
        if (i < n) o.put(i, first + j, sum);
      },
      plain(rule.asked(), rule.sizes.keys, state, columns, All{rule.sizes.keys}), rule.asked_scale(),
      plain(pairs.scores, chunk, x, columns, UpToRow{}));
}

/// Uses x up: v_new is scaled where the keys are not.
template <class Rule>
void advance(const Rule& rule, const Place& at, int slice, float* x, float* state) {
  const int columns = rule.sizes.columns(slice);
  rule.scale_written(at.rows, columns, x);
  const float* last = rule.last;
  Ahead* ahead = rule.ahead;
  product(
      rule.sizes.keys, columns,
      [=](int i, int j, Vector sum) {
        ahead->fetch(Rule::lines_per_sum);
        store(state + i * columns + j, last[i] * load(state + i * columns + j) + sum);
      },
      turned(rule.written(), rule.sizes.keys, x, columns, All{at.rows}));
}

/// Backward through one slice. With dh the gradient of the state after the chunk:
///   dR = (I + A0)^-T (P^T do + written dh)      dv = weight dR
///   dh <- last dh + asked^T do + erased^T dR
/// and the sums over value channels. y is scratch of [2 chunk, columns], turned of [columns, keys].
template <class Rule>
struct BackwardSlice {
  const Rule& rule;
  const Place& at;
  const Record& record;
  const Sums& sums;
  int slice;
  bool is_first;  // sets the sums, to which the others add
  float *dh, *y, *turned_dh;

  int columns() const { return rule.sizes.columns(slice); }
  int first() const { return slice * slice_width; }
  const float* state() const { return record.state + Index{first()} * rule.sizes.keys; }
  const float* values() const { return record.new_values + first() * chunk; }

  void operator()() const {
    gradients_of_values();
    rule.write_value_gradients(at, slice, y + at.rows * columns(), is_first, sums.v_dr);
    sum_pairs();
    rule.scale_gradients(at.rows, columns(), y);
    sum_states();
    retreat();
  }

 private:
  void gradients_of_values() const {
    const int w = columns(), keys = rule.sizes.keys;
    const auto d_o = rule.value_input(rule.call.d_o, at, first());
    for (int i = 0; i < at.rows; ++i)
      for (int j = 0; j < w; j += width) store(y + i * w + j, i < at.n ? d_o.at(i, j) : Vector{});
    float* dr = y + at.rows * w;
    product(
        at.rows, w, [=](int i, int j, Vector sum) { store(dr + i * w + j, sum); },
        plain(rule.written(), keys, dh, w, All{keys}), rule.written_scale(),
        turned(record.pairs.scores, chunk, y, w, FromRow{at.rows}));
    solve_turned(at.rows, w, record.pairs.strict, dr, w);
  }

  DELTAPORT_HOST_INLINE void add_to(float* x, Vector sum) const { store(x, is_first ? sum : load(x) + sum); }

  void sum_pairs() const {
    const int w = columns();
    lower_product(
        at.rows, [=, this](int i, int j, Vector sum) { add_to(sums.do_v + i * chunk + j, sum); },
        plain(y, w, values(), chunk, All{w}));
    lower_product(
        at.rows, [=, this](int i, int j, Vector sum) { add_to(sums.dr_v + i * chunk + j, sum); },
        plain(y + at.rows * w, w, values(), chunk, All{w}));
  }

  void sum_states() const {
    const int w = columns(), keys = rule.sizes.keys;
    transpose(keys, w, dh, w, turned_dh, keys);
    product(
        2 * at.rows, keys,
        [=, this](int i, int j, Vector sum) {
          rule.ahead->fetch(Rule::lines_per_sum);
          add_to(sums.rows + i * keys + j, sum);
        },
        plain(y, w, state(), keys, All{w}));
    product(
        at.rows, keys, [=, this](int i, int j, Vector sum) { add_to(sums.columns + i * keys + j, sum); },
        turned(values(), chunk, turned_dh, keys, All{w}));
    for (int a = 0; a < keys; a += width) {
      Vector sum{};
      for (int j = 0; j < w; ++j) sum += load(state() + j * keys + a) * load(turned_dh + j * keys + a);
      add_to(sums.whole + a, sum);
    }
  }

  void retreat() const {
    const int w = columns(), keys = rule.sizes.keys;
    rule.scale_erased(at.rows, w, y);
    const float* last = rule.last;
    float* out = dh;
    product(
        keys, w,
        [=](int i, int j, Vector sum) { store(out + i * w + j, last[i] * load(out + i * w + j) + sum); },
        turned(rule.asked(), keys, y, w, All{at.rows}),
        turned(rule.erased(), keys, y + at.rows * w, w, All{at.rows}));
  }
};

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
