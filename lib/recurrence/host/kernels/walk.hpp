// SPDX-License-Identifier: Apache-2.0
// A task: one head of one sequence, chunk by chunk with the state in the workspace.
#pragma once

#include "recurrence/host/kernels/gdn.hpp"
#include "recurrence/host/kernels/gdn2.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

/// Where the task's head has its state in a tensor [N, HV, K, V].
inline Index state_offset(const Call& call, const Task& task) {
  return (task.sequence * call.value_heads + task.head) * call.key_dim * Index{call.value_dim};
}
/// states (the task's slices) = those of a tensor; zero where there is none.
inline void load_state(const Sizes& sizes, const Call& call, const Task& task, const float* tensor,
                       float* states) {
  const float* from = tensor == nullptr ? nullptr : tensor + state_offset(call, task);
  for (int s = task.first_slice; s < task.first_slice + task.slices; ++s) {
    const int columns = sizes.columns(s), first = s * slice_width;
    for (int a = 0; a < sizes.keys; ++a)
      for (int j = 0; j < columns; j += width) {
        Vector x{};
        if (from != nullptr && a < call.key_dim)
          x = load_part(from + Index{a} * call.value_dim + first + j, call.value_dim - first - j);
        store(states + Index{first} * sizes.keys + a * columns + j, x);
      }
  }
}
/// Does nothing without a tensor.
inline void store_state(const Sizes& sizes, const Call& call, const Task& task, const float* states,
                        float* tensor) {
  if (tensor == nullptr) return;
  float* to = tensor + state_offset(call, task);
  for (int s = task.first_slice; s < task.first_slice + task.slices; ++s) {
    const int columns = sizes.columns(s), first = s * slice_width;
    for (int a = 0; a < call.key_dim; ++a)
      for (int j = 0; j < columns; j += width)
        store_part(to + Index{a} * call.value_dim + first + j,
                   load(states + Index{first} * sizes.keys + a * columns + j), call.value_dim - first - j);
  }
}

template <class Rule>
void announce(const Rule& rule, const Task& task, const Span& span, Index next, Reads what) {
  rule.ahead->clear();
  if (next >= 0 && next < span.chunks()) rule.announce(Place(span, next, task.head), what);
}

template <class Rule>
struct ForwardSpace {
  Carver carver;
  Rule rule;
  Pairs pairs;
  float *values, *state;
  ForwardSpace(const Call& call, float* base)
      : carver{base},
        rule(call, carver),
        pairs(carver),
        values(carver.take(chunk * slice_width)),
        state(carver.take(rule.sizes.state())) {}
};

template <class Rule>
void forward(const Call& call, const Task& task, float* workspace) {
  const FlushDenormals flush;
  ForwardSpace<Rule> space(call, workspace);
  Rule& rule = space.rule;
  Ahead ahead;
  rule.ahead = &ahead;
  const Sizes& sizes = rule.sizes;
  load_state(sizes, call, task, call.initial_state, space.state);
  const Span span(call, task.sequence);
  for (Index c = 0; c < span.chunks(); ++c) {
    const Place at(span, c, task.head);
    rule.prepare(at, Decays::passing);
    announce(rule, task, span, c + 1, Reads::values);
    rule.pairs(at, space.pairs);
    for (int s = task.first_slice; s < task.first_slice + task.slices; ++s) {
      float* state = space.state + Index{s} * slice_width * sizes.keys;
      new_values(rule, at, space.pairs, s, state, space.values);
      outputs(rule, at, space.pairs, s, state, space.values);
      advance(rule, at, s, space.values, state);
    }
  }
  store_state(sizes, call, task, space.state, call.final_state);
  finish_streams();
}

template <class Rule>
struct BackwardSpace {
  Carver carver;
  Rule rule;
  Sums sums;
  float *y, *turned, *state;
  Index record_size;
  float* records;
  BackwardSpace(const Call& call, Index chunks, float* base)
      : carver{base},
        rule(call, carver),
        sums(carver, rule.sizes),
        y(carver.take(2 * chunk * slice_width)),
        turned(carver.take(Index{slice_width} * rule.sizes.keys)),
        state(carver.take(rule.sizes.state())) {
    Carver one{nullptr};
    Record(one, rule.sizes);
    record_size = one.used;
    records = carver.take(record_size * chunks);
  }
  Record record(Index index) const {
    Carver from{records + index * record_size};
    return Record(from, rule.sizes);
  }
};

/// First walk: A0, P, the state before the chunk and v_new, of every chunk.
template <class Rule>
void recompute(BackwardSpace<Rule>& space, const Task& task, const Span& span) {
  Rule& rule = space.rule;
  const Sizes& sizes = rule.sizes;
  for (Index c = 0; c < span.chunks(); ++c) {
    const Place at(span, c, task.head);
    const Record record = space.record(c);
    rule.prepare(at, Decays::passing);
    announce(rule, task, span, c + 1, Reads::values);
    rule.pairs(at, record.pairs);
    for (int s = task.first_slice; s < task.first_slice + task.slices; ++s) {
      const int columns = sizes.columns(s);
      const Index first = s * slice_width;
      float* state = space.state + first * sizes.keys;
      new_values(rule, at, record.pairs, s, state, space.y);
      transpose(at.rows, columns, space.y, columns, record.new_values + first * chunk, chunk);
      transpose(sizes.keys, columns, state, columns, record.state + first * sizes.keys, sizes.keys);
      if (c + 1 < span.chunks()) advance(rule, at, s, space.y, state);
    }
  }
}

/// Where the sums of a chunk go that a task does not use up itself.
inline Index size_of_sums(const Sizes& sizes) {
  Carver one{nullptr};
  Sums(one, sizes);
  return one.used;
}
inline Sums sums_at(const Sizes& sizes, float* base) {
  Carver from{base};
  return Sums(from, sizes);
}

template <class Rule>
void backward(const Call& call, const Task& task, float* workspace, float* kept) {
  const FlushDenormals flush;
  const Span span(call, task.sequence);
  BackwardSpace<Rule> space(call, span.chunks(), workspace);
  Rule& rule = space.rule;
  Ahead ahead;
  rule.ahead = &ahead;
  const Sizes& sizes = rule.sizes;
  load_state(sizes, call, task, call.initial_state, space.state);
  recompute(space, task, span);
  load_state(sizes, call, task, call.d_final_state, space.state);
  for (Index c = span.chunks() - 1; c >= 0; --c) {
    const Place at(span, c, task.head);
    const Record record = space.record(c);
    const Sums sums = kept == nullptr ? space.sums : sums_at(sizes, kept + c * size_of_sums(sizes));
    rule.prepare(at, Decays::kept);
    announce(rule, task, span, c - 1, Reads::values_and_gradients);
    for (int s = task.first_slice; s < task.first_slice + task.slices; ++s) {
      float* dh = space.state + Index{s} * slice_width * sizes.keys;
      const bool is_first = s == task.first_slice;
      BackwardSlice<Rule>{rule, at, record, sums, s, is_first, dh, space.y, space.turned}();
    }
    if (kept == nullptr) rule.write_gradients(at, record.pairs, sums);
  }
  store_state(sizes, call, task, space.state, call.d_initial_state);
  finish_streams();
}

template <class Rule>
struct CombineSpace {
  Carver carver;
  Rule rule;
  Pairs pairs;
  float* sums;
  CombineSpace(const Call& call, float* base)
      : carver{base}, rule(call, carver), pairs(carver), sums(carver.take(size_of_sums(rule.sizes))) {}
};

/// Adds up what the slices left, in the order in which one task would have.
template <class Rule>
void combine(const Call& call, long long sequence, int head, long long index, const float* sums,
             long long apart, float* workspace) {
  const FlushDenormals flush;
  CombineSpace<Rule> space(call, workspace);
  Rule& rule = space.rule;
  const Index size = size_of_sums(rule.sizes);
  for (Index i = 0; i < size; i += width) {
    Vector sum = load(sums + i);
    for (int s = 1; s < rule.sizes.slices(); ++s) sum += load(sums + s * apart + i);
    store(space.sums + i, sum);
  }
  const Place at(Span(call, sequence), index, head);
  rule.prepare(at, Decays::kept);
  rule.pairs(at, space.pairs);
  rule.write_gradients(at, space.pairs, sums_at(rule.sizes, space.sums));
  finish_streams();
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
