// SPDX-License-Identifier: Apache-2.0
// GDN2 over chunks, as gdn_forward.cpp with a decay per channel: e, f [C, K], D_ij a vector over the
// channels. P_ij = scale sum_d q_i k_j D_ij (i >= j), A0_ij = sum_d (b k)_i k_j D_ij (i > j); v_new = (I +
// A0)^-1 (w v - (b k e) S), o = scale (q e) S + P v_new, S <- e_last S + (k f)^T v_new.
#include "recurrence/implementations.hpp"
#include "recurrence/portable/flush_denormals.hpp"
#include "recurrence/portable/gdn2_chunk.hpp"
#include "recurrence/portable/pairs.hpp"
#include "recurrence/portable/triangle.hpp"
#include "recurrence/portable/workers.hpp"
#include "recurrence/rows.hpp"

namespace deltaport::recurrence::portable {
namespace {

template <class A>
struct Workspace {
  A *state, *decayed, *strict, *scores, *inverse, *values, *new_values, *read, *rows, *columns, *running,
      *scratch;
  Gdn2Channels<A> channels;
  std::int64_t size;

  KOKKOS_INLINE_FUNCTION Workspace(Carver<A> carver, std::int64_t k, std::int64_t v, int c)
      : state(carver.take(k * v)),
        decayed(carver.take(2 * c * k)),
        strict(carver.take(std::int64_t{c} * c)),
        scores(carver.take(std::int64_t{c} * c)),
        inverse(carver.take(std::int64_t{c} * c)),
        values(carver.take(c * v)),
        new_values(carver.take(c * v)),
        read(carver.take(2 * c * v)),
        rows(carver.take(c * k)),  // half a chunk of q and of b k
        columns(carver.take(c * k)),
        running(carver.take(k)),
        scratch(carver.take(16 * std::int64_t{c})),
        channels(carver, c, static_cast<int>(k)),
        size(carver.used) {}
};

template <class T>
struct Gdn2Forward {
  using A = Accumulate<T>;
  Gdn2Pointers<T> in;
  T* o;
  A* final_state;                   // null: not asked for
  T *saved_scores, *saved_inverse;  // null: not asked for
  A* workspaces;
  std::int64_t workspace_size;
  std::int64_t first = 0;

  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const FlushDenormals flush;
    const Extents& x = in.x;
    const Item item = item_of(team, x, first);
    const Workspace<A> ws(Carver<A>(workspaces + item.worker * workspace_size), x.key_dim, x.value_dim,
                          in.chunk_size);
    const std::int64_t at =
        (item.sequence * x.value_heads + item.head) * std::int64_t{x.key_dim} * x.value_dim;
    copy_state(team, in.initial_state == nullptr ? nullptr : in.initial_state + at, ws.state);
    const Span span = x.span(item.sequence);
    for (std::int64_t row = span.begin; row < span.end; row += in.chunk_size) {
      const int n = static_cast<int>(span.end - row < in.chunk_size ? span.end - row : in.chunk_size);
      ws.channels.load(team, in, row, item.head, n);
      matrices(team, ws, n);
      save(team, ws, row, item.head, n);
      outputs(team, ws, row, item.head, n);
      advance(team, ws, n);
    }
    barrier(team);
    if (final_state != nullptr) copy_state(team, ws.state, final_state + at);
    barrier(team);
  }

 private:
  KOKKOS_FUNCTION void copy_state(const TeamMember& team, const A* from, A* to) const {
    const int columns = in.x.value_dim;
    for_elements(team, in.x.key_dim, columns, [=](int a, int c) {
      const std::int64_t i = std::int64_t{a} * columns + c;
      to[i] = from == nullptr ? A(0) : from[i];
    });
  }

  /// scores = P, inverse = (I + A0)^-1
  KOKKOS_FUNCTION void matrices(const TeamMember& team, const Workspace<A>& ws, int n) const {
    const int c = in.chunk_size;
    const int dim = in.x.key_dim;
    A* strict = ws.strict;
    A* scores = ws.scores;
    for_elements(team, n, n, [=](int i, int j) {
      if (j > i) strict[i * c + j] = scores[i * c + j] = A(0);
    });
    for_pair_blocks(c, n, [&](const PairBlock& block) {
      scale_pair_block(team, ws.channels, n, block, ws.rows, ws.columns, ws.running);
      const int at = block.anchor * c + block.begin;
      team_gemm(team, as_is, transposed, block.rows, block.columns(), dim, in.scale, ws.rows, dim, ws.columns,
                dim, A(0), scores + at, c);
      team_gemm(team, as_is, transposed, block.rows, block.columns(), dim, A(1), ws.rows + block.rows * dim,
                dim, ws.columns, dim, A(0), strict + at, c);
    });
    diagonal(team, ws, n);
    barrier(team);
    invert_unit_lower(team, n, ws.strict, ws.inverse, c, ws.scratch);
  }

  KOKKOS_FUNCTION void diagonal(const TeamMember& team, const Workspace<A>& ws, int n) const {
    const int c = in.chunk_size;
    const int dim = in.x.key_dim;
    const A scale = in.scale;
    const Gdn2Channels<A>& x = ws.channels;
    const A* erased = x.erased(n);
    KOKKOS_IF_ON_HOST((static_cast<void>(team); for (int b = 0; b < n; b += pair_block) {
      const int at = b * dim;
      host_diagonal_scores(n - b < pair_block ? n - b : pair_block, dim, dim, x.qb + at, erased + at,
                           x.keys + at, x.step + at, scale, ws.scores + b * c + b, ws.strict + b * c + b, c,
                           ws.running);
    }))
    KOKKOS_IF_ON_DEVICE(
        (barrier(team); for_rows(team, n, [&](int j) {
           const int end = (j / pair_block + 1) * pair_block < n ? (j / pair_block + 1) * pair_block : n;
           A* carried = ws.columns + j * dim;
           const A* step = x.step;
           const A* key = x.keys + j * dim;
           for (int i = j; i < end; ++i) {
             for_lanes(team, dim,
                       [=](int a) { carried[a] = i == j ? key[a] : carried[a] * step[i * dim + a]; });
             ws.scores[i * c + j] = scale * dot<A>(team, dim, x.qb + i * dim, carried);
             ws.strict[i * c + j] = i == j ? A(0) : dot<A>(team, dim, erased + i * dim, carried);
           }
         });))
  }

  KOKKOS_FUNCTION void save(const TeamMember& team, const Workspace<A>& ws, std::int64_t row, int head,
                            int n) const {
    if (saved_inverse == nullptr) return;
    const int c = in.chunk_size;
    const std::int64_t stride = in.pair_stride();
    const A* inverse = ws.inverse;
    const A* scores = ws.scores;
    T* inverse_out = saved_inverse + in.pair_at(row, head);
    T* scores_out = saved_scores + in.pair_at(row, head);
    for_elements(team, n, c, [=](int i, int j) {
      inverse_out[i * stride + j] = j < n ? static_cast<T>(inverse[i * c + j]) : T(0);
      scores_out[i * stride + j] = j < n ? static_cast<T>(scores[i * c + j]) : T(0);
    });
  }

  /// new_values = v_new, o of the chunk
  KOKKOS_FUNCTION void outputs(const TeamMember& team, const Workspace<A>& ws, std::int64_t row, int head,
                               int n) const {
    const int dim = in.x.value_dim;
    const int key_dim = in.x.key_dim;
    A* decayed = ws.decayed;
    const A* qb = ws.channels.qb;
    const A* from = ws.channels.from;
    for_elements(team, 2 * n, key_dim, [=](int i, int a) {
      decayed[i * key_dim + a] = qb[i * key_dim + a] * from[(i < n ? i : i - n) * key_dim + a];
    });
    team_gemm(team, as_is, as_is, 2 * n, dim, key_dim, A(1), ws.decayed, key_dim, ws.state, dim, A(0),
              ws.read, dim);
    const std::int64_t stride = in.value_stride();
    const T* v = in.v + in.value_at(row, head);
    const T* w = in.w + in.value_at(row, head);
    T* out = o + in.value_at(row, head);
    const A* asked = ws.read;
    const A* recalled = ws.read + std::int64_t{n} * dim;
    A* values = ws.values;
    const A scale = in.scale;
    for_elements(team, n, dim, [=](int i, int c) {
      values[i * dim + c] =
          static_cast<A>(w[i * stride + c]) * static_cast<A>(v[i * stride + c]) - recalled[i * dim + c];
      out[i * stride + c] = static_cast<T>(scale * asked[i * dim + c]);
    });
    lower_times(team, n, dim, ws.inverse, in.chunk_size, ws.values, dim, A(0), ws.new_values, dim);
    lower_times(team, n, dim, ws.scores, in.chunk_size, ws.new_values, dim, A(1), out, stride);
  }

  /// state <- e_last state + (k f)^T v_new
  KOKKOS_FUNCTION void advance(const TeamMember& team, const Workspace<A>& ws, int n) const {
    const int dim = in.x.value_dim;
    const int key_dim = in.x.key_dim;
    const A* keys = ws.channels.keys;
    const A* to_end = ws.channels.to_end;
    const A* last = ws.channels.from + (n - 1) * key_dim;
    A* decayed = ws.decayed;
    A* state = ws.state;
    for_elements(team, n, key_dim, [=](int i, int a) {
      decayed[i * key_dim + a] = keys[i * key_dim + a] * to_end[i * key_dim + a];
    });
    for_elements(team, key_dim, dim, [=](int a, int c) { state[std::int64_t{a} * dim + c] *= last[a]; });
    team_gemm(team, transposed, as_is, key_dim, dim, n, A(1), ws.decayed, key_dim, ws.new_values, dim, A(1),
              ws.state, dim);
  }
};

}  // namespace

template <class T>
ForwardResult<Gdn2Saved<T>, T> forward(Runtime& runtime, const Extents& x, const Gdn2Inputs<T>& inputs,
                                       const Options& options) {
  using A = Accumulate<T>;
  ForwardResult<Gdn2Saved<T>, T> result;
  result.o = runtime.allocate<T>("recurrence o", {x.batch, x.tokens, x.value_heads, x.value_dim});
  if (options.output_final_state)
    result.final_state =
        runtime.allocate<A>("recurrence state", {x.sequences, x.value_heads, x.key_dim, x.value_dim});
  if (options.save_for_backward) {
    const Shape pairs{x.batch, x.tokens, x.value_heads, options.chunk_size};
    result.saved.scores = runtime.allocate<T>("recurrence scores", pairs);
    result.saved.inverse = runtime.allocate<T>("recurrence inverse", pairs);
  }
  const Workers workers(runtime.compute(), x);
  const std::int64_t size = Workspace<A>(Carver<A>(nullptr), x.key_dim, x.value_dim, options.chunk_size).size;
  const auto workspaces = runtime.allocate<A>("recurrence workspace", {workers.count, size});
  for_each_item(
      runtime.compute(), "deltaport: gdn2 forward", workers,
      Gdn2Forward<T>{Gdn2Pointers<T>(x, inputs, options), result.o.data(), result.final_state.data(),
                     result.saved.scores.data(), result.saved.inverse.data(), workspaces.data(), size});
  zero_uncovered_rows(runtime.compute(), x, result.o);
  return result;
}

template ForwardResult<Gdn2Saved<float>, float> forward<float>(Runtime&, const Extents&,
                                                               const Gdn2Inputs<float>&, const Options&);
template ForwardResult<Gdn2Saved<double>, double> forward<double>(Runtime&, const Extents&,
                                                                  const Gdn2Inputs<double>&, const Options&);

}  // namespace deltaport::recurrence::portable
