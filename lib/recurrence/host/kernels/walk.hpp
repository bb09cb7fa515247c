// SPDX-License-Identifier: Apache-2.0
// A task: some heads of one sequence, chunk by chunk with the state in the workspace.
#pragma once

#include "recurrence/host/kernels/gdn.hpp"
#include "recurrence/host/kernels/gdn2.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

/// to (slices) = a state [K, V] of a tensor; zero where there is none.
inline void load_state(const Sizes& sizes, const Call& call, const float* from, float* to) {
  for (int s = 0; s < sizes.slices(); ++s) {
    const int columns = sizes.columns(s), first = s * slice_width;
    for (int a = 0; a < sizes.keys; ++a)
      for (int j = 0; j < columns; j += width) {
        Vector x{};
        if (from != nullptr && a < call.key_dim)
          x = load_part(from + Index{a} * call.value_dim + first + j, call.value_dim - first - j);
        store(to + Index{first} * sizes.keys + a * columns + j, x);
      }
  }
}
inline void store_state(const Sizes& sizes, const Call& call, const float* from, float* to) {
  for (int s = 0; s < sizes.slices(); ++s) {
    const int columns = sizes.columns(s), first = s * slice_width;
    for (int a = 0; a < call.key_dim; ++a)
      for (int j = 0; j < columns; j += width)
        store_part(to + Index{a} * call.value_dim + first + j,
                   load(from + Index{first} * sizes.keys + a * columns + j), call.value_dim - first - j);
  }
}
/// Where a head's state lies in a tensor [N, HV, K, V], or null.
template <class X>
X* state_of(const Call& call, X* tensor, Index sequence, int head) {
  return tensor == nullptr
             ? nullptr
             : tensor + (sequence * call.value_heads + head) * call.key_dim * Index{call.value_dim};
}

template <class Rule>
struct ForwardSpace {
  Carver carver;
  Rule rule;
  Pairs pairs;
  float *values, *states;
  ForwardSpace(const Call& call, int heads, float* base)
      : carver{base},
        rule(call, carver),
        pairs(carver),
        values(carver.take(chunk * slice_width)),
        states(carver.take(heads * rule.sizes.state())) {}
};

template <class Rule>
void forward(const Call& call, const Task& task, float* workspace) {
  const FlushDenormals flush;
  ForwardSpace<Rule> space(call, task.heads, workspace);
  Rule& rule = space.rule;
  const Sizes& sizes = rule.sizes;
  for (int h = 0; h < task.heads; ++h)
    load_state(sizes, call, state_of(call, call.initial_state, task.sequence, task.first_head + h),
               space.states + h * sizes.state());
  const Span span(call, task.sequence);
  for (Index c = 0; c < span.chunks(); ++c)
    for (int h = 0; h < task.heads; ++h) {
      const Place at(span, c, task.first_head + h);
      rule.prepare(at, Decays::passing);
      rule.pairs(at, space.pairs);
      for (int s = 0; s < sizes.slices(); ++s) {
        float* state = space.states + h * sizes.state() + Index{s} * slice_width * sizes.keys;
        new_values(rule, at, space.pairs, s, state, space.values);
        outputs(rule, at, space.pairs, s, state, space.values);
        advance(rule, at, s, space.values, state);
      }
    }
  if (call.final_state != nullptr)
    for (int h = 0; h < task.heads; ++h)
      store_state(sizes, call, space.states + h * sizes.state(),
                  state_of(call, call.final_state, task.sequence, task.first_head + h));
  finish_streams();
}

template <class Rule>
struct BackwardSpace {
  Carver carver;
  Rule rule;
  Sums sums;
  float *y, *turned, *states;
  Index record_size;
  float* records;
  BackwardSpace(const Call& call, int heads, Index chunks, float* base)
      : carver{base},
        rule(call, carver),
        sums(carver, rule.sizes),
        y(carver.take(2 * chunk * slice_width)),
        turned(carver.take(Index{slice_width} * rule.sizes.keys)),
        states(carver.take(heads * rule.sizes.state())) {
    Carver one{nullptr};
    Record(one, rule.sizes);
    record_size = one.used;
    records = carver.take(record_size * heads * chunks);
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
  for (Index c = 0; c < span.chunks(); ++c)
    for (int h = 0; h < task.heads; ++h) {
      const Place at(span, c, task.first_head + h);
      const Record record = space.record(c * task.heads + h);
      rule.prepare(at, Decays::passing);
      rule.pairs(at, record.pairs);
      for (int s = 0; s < sizes.slices(); ++s) {
        const int columns = sizes.columns(s);
        const Index first = s * slice_width;
        float* state = space.states + h * sizes.state() + first * sizes.keys;
        new_values(rule, at, record.pairs, s, state, space.y);
        transpose(at.rows, columns, space.y, columns, record.new_values + first * chunk, chunk);
        transpose(sizes.keys, columns, state, columns, record.state + first * sizes.keys, sizes.keys);
        if (c + 1 < span.chunks()) advance(rule, at, s, space.y, state);
      }
    }
}

template <class Rule>
void backward(const Call& call, const Task& task, float* workspace) {
  const FlushDenormals flush;
  const Span span(call, task.sequence);
  BackwardSpace<Rule> space(call, task.heads, span.chunks(), workspace);
  Rule& rule = space.rule;
  const Sizes& sizes = rule.sizes;
  const auto load_states = [&](const float* tensor) {
    for (int h = 0; h < task.heads; ++h)
      load_state(sizes, call, state_of(call, tensor, task.sequence, task.first_head + h),
                 space.states + h * sizes.state());
  };
  load_states(call.initial_state);
  recompute(space, task, span);
  load_states(call.d_final_state);
  for (Index c = span.chunks() - 1; c >= 0; --c)
    for (int h = 0; h < task.heads; ++h) {
      const Place at(span, c, task.first_head + h);
      const Record record = space.record(c * task.heads + h);
      rule.prepare(at, Decays::kept);
      for (int s = 0; s < sizes.slices(); ++s)
        BackwardSlice<Rule>{rule,    at,
                            record,  space.sums,
                            s,       space.states + h * sizes.state() + Index{s} * slice_width * sizes.keys,
                            space.y, space.turned}();
      rule.write_gradients(at, record.pairs, space.sums);
    }
  if (call.d_initial_state != nullptr)
    for (int h = 0; h < task.heads; ++h)
      store_state(sizes, call, space.states + h * sizes.state(),
                  state_of(call, call.d_initial_state, task.sequence, task.first_head + h));
  finish_streams();
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
