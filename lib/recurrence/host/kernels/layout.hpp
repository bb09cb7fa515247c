// SPDX-License-Identifier: Apache-2.0
// How a worker's memory is laid out. Channels are padded with zeros to whole vectors and tokens to whole
// blocks of 16, so that no loop inside has a tail; only reads and writes of tensors do.
#pragma once

#include "recurrence/host/kernels/ahead.hpp"

namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA {
namespace {

constexpr int token_block = 16;

/// Hands out 64-byte aligned parts of a workspace. From null it only counts.
struct Carver {
  float* base;
  Index used = 0;
  float* take(Index floats) {
    float* part = base == nullptr ? nullptr : base + used;
    used += (floats + 15) / 16 * 16;
    return part;
  }
};

/// Padded sizes. Matrices over value channels are kept slice by slice, each slice dense: slice s of a matrix
/// with `rows` rows starts at s * slice_width * rows and has rows columns(s) apart.
struct Sizes {
  int keys, values;
  explicit Sizes(const Call& call)
      : keys(round_up(call.key_dim, width)), values(round_up(call.value_dim, width)) {}
  int slices() const { return (values + slice_width - 1) / slice_width; }
  int columns(int slice) const {
    const int left = values - slice * slice_width;
    return left < slice_width ? left : slice_width;
  }
  Index state() const { return Index{keys} * values; }
};

/// Token rows [begin, end) of a sequence.
struct Span {
  Index begin, end;
  Span(const Call& call, Index sequence) {
    begin = call.cu_seqlens == nullptr ? sequence * call.tokens : call.cu_seqlens[sequence];
    end = call.cu_seqlens == nullptr ? begin + call.tokens : call.cu_seqlens[sequence + 1];
  }
  Index chunks() const { return (end - begin + chunk - 1) / chunk; }
};

/// One chunk of one head: n tokens from `row` on, padded to `rows`.
struct Place {
  Index row;
  int n, rows, head;
  Place(const Span& span, Index index, int value_head) : row(span.begin + index * chunk), head(value_head) {
    n = static_cast<int>(span.end - row < chunk ? span.end - row : chunk);
    rows = round_up(n, token_block);
  }
};

/// A0 (strictly lower) and P (lower) of a chunk: v_new = (I + A0)^-1 R, o = asked S + P v_new.
struct Pairs {
  float *strict, *scores;  // [chunk, chunk]
  explicit Pairs(Carver& carver) : strict(carver.take(chunk * chunk)), scores(carver.take(chunk * chunk)) {}
};

/// Sums over value channels that backward needs, added up slice by slice in ascending order.
struct Sums {
  float *do_v, *dr_v;  // [chunk, chunk] do v_new^T, dR v_new^T
  float* rows;         // [2 rows, keys] do S^T, then dR S^T (GDN: with the factors of asked and erased)
  float* columns;      // [chunk, keys] v_new dh^T
  float* whole;        // [keys] sum of S dh
  float* v_dr;         // [chunk] v . dR (GDN)
  explicit Sums(Carver& carver, const Sizes& sizes) {
    do_v = carver.take(chunk * chunk), dr_v = carver.take(chunk * chunk);
    rows = carver.take(Index{2} * chunk * sizes.keys), columns = carver.take(Index{chunk} * sizes.keys);
    whole = carver.take(sizes.keys), v_dr = carver.take(chunk);
  }
};

/// What the recompute pass keeps of a chunk, both turned because only products with them on the right follow.
struct Record {
  Pairs pairs;
  float* state;       // [values, keys] S^T before the chunk; slices one after the other
  float* new_values;  // [values, chunk] v_new^T
  Record(Carver& carver, const Sizes& sizes)
      : pairs(carver),
        state(carver.take(sizes.state())),
        new_values(carver.take(Index{sizes.values} * chunk)) {}
};

/// Which walk reads the tensors.
enum class Reads { values, values_and_gradients };

/// Whether decays are kept for every token, or only the last one at hand.
enum class Decays { passing, kept };

/// Pointers to one head's rows.
template <class T>
DELTAPORT_HOST_INLINE Input<T> input(const void* tensor, Index row, int heads, int head, int channels,
                                     int first = 0) {
  const Index stride = Index{heads} * channels;
  return {static_cast<const T*>(tensor) + row * stride + Index{head} * channels + first, stride,
          channels - first};
}
template <class T>
DELTAPORT_HOST_INLINE Input<T> key_input(const Call& call, const void* tensor, const Place& at) {
  return input<T>(tensor, at.row, call.key_heads, at.head / (call.value_heads / call.key_heads),
                  call.key_dim);
}
template <class T>
DELTAPORT_HOST_INLINE Input<T> gate_input(const Call& call, const void* tensor, const Place& at) {
  return input<T>(tensor, at.row, call.gate_heads, at.head / (call.value_heads / call.gate_heads),
                  call.key_dim);
}
template <class T>
DELTAPORT_HOST_INLINE Input<T> value_input(const Call& call, const void* tensor, const Place& at, int first) {
  return input<T>(tensor, at.row, call.value_heads, at.head, call.value_dim, first);
}

}  // namespace
}  // namespace deltaport::recurrence::host::DELTAPORT_HOST_ISA
