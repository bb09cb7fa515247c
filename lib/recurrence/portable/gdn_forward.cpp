// SPDX-License-Identifier: Apache-2.0
// GDN over chunks: per (sequence, value head) one team walks the chunks in order with the state in its
// workspace. Notation: e decay since the chunk's start, f until its end, D between two tokens; A0 =
// strict_lower(beta_i k_i.k_j D_ij), P = scale lower(q_i.k_j D_ij). Then v_new = (I + A0)^-1 beta (v - e (k
// S)), o = scale e (q S) + P v_new, S <- e_last S + k^T (f v_new).
#include "recurrence/implementations.hpp"
#include "recurrence/portable/flush_denormals.hpp"
#include "recurrence/portable/gdn_chunk.hpp"
#include "recurrence/portable/triangle.hpp"
#include "recurrence/portable/workers.hpp"
#include "recurrence/rows.hpp"

namespace deltaport::recurrence::portable {
namespace {

template <class A>
struct Workspace {
  A *state, *qk, *products, *strict, *scores, *inverse, *values, *new_values, *read;
  GdnDecay<A> decay;

  KOKKOS_INLINE_FUNCTION Workspace(Carver<A> carver, int k, int v, int c)
      : state(carver.take(std::int64_t{k} * v)),
        qk(carver.take(2 * std::int64_t{c} * k)),
        products(carver.take(2 * std::int64_t{c} * c)),
        strict(carver.take(std::int64_t{c} * c)),
        scores(carver.take(std::int64_t{c} * c)),
        inverse(carver.take(std::int64_t{c} * c)),
        values(carver.take(std::int64_t{c} * v)),
        new_values(carver.take(std::int64_t{c} * v)),
        read(carver.take(2 * std::int64_t{c} * v)),
        decay(carver, c),
        size(carver.used) {}
  std::int64_t size;
};

template <class T>
struct GdnForward {
  using A = Accumulate<T>;
  GdnPointers<T> in;
  T* o;
  A* final_state;    // null: not asked for
  T* saved_inverse;  // null: not asked for
  A* workspaces;
  std::int64_t workspace_size;
  std::int64_t first = 0;

  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const FlushDenormals flush;
    const Extents& x = in.x;
    const Item item = item_of(team, x, first);
    const Workspace<A> ws(Carver<A>(workspaces + item.worker * workspace_size), x.key_dim, x.value_dim,
                          in.chunk_size);
    const std::int64_t size = std::int64_t{x.key_dim} * x.value_dim;
    const std::int64_t at = (item.sequence * x.value_heads + item.head) * size;
    const A* start = in.initial_state == nullptr ? nullptr : in.initial_state + at;
    for_elements(team, x.key_dim, x.value_dim, [&](int a, int c) {
      const std::int64_t i = std::int64_t{a} * x.value_dim + c;
      ws.state[i] = start == nullptr ? A(0) : start[i];
    });
    const Span span = x.span(item.sequence);
    for (std::int64_t row = span.begin; row < span.end; row += in.chunk_size) {
      const int n = static_cast<int>(span.end - row < in.chunk_size ? span.end - row : in.chunk_size);
      load(team, ws, row, item.head, n);
      matrices(team, ws, row, item.head, n);
      outputs(team, ws, row, item.head, n);
      advance(team, ws, n);
    }
    if (final_state != nullptr) {
      A* out = final_state + at;
      for_elements(team, x.key_dim, x.value_dim, [&](int a, int c) {
        const std::int64_t i = std::int64_t{a} * x.value_dim + c;
        out[i] = ws.state[i];
      });
    }
    barrier(team);
  }

 private:
  /// qk = [k; q] of the chunk, and its gates.
  KOKKOS_FUNCTION void load(const TeamMember& team, const Workspace<A>& ws, std::int64_t row, int head,
                            int n) const {
    const int dim = in.x.key_dim;
    const std::int64_t stride = in.key_stride();
    const T* k = in.k + in.key_at(row, head);
    const T* q = in.q + in.key_at(row, head);
    A* keys = ws.qk;
    A* queries = ws.qk + std::int64_t{n} * dim;
    for_elements(team, n, dim, [=](int i, int a) { keys[i * dim + a] = static_cast<A>(k[i * stride + a]); });
    for_elements(team, n, dim,
                 [=](int i, int a) { queries[i * dim + a] = static_cast<A>(q[i * stride + a]); });
    ws.decay.load(team, in, row, head, n);
  }

  /// scores = P, inverse = (I + A0)^-1
  KOKKOS_FUNCTION void matrices(const TeamMember& team, const Workspace<A>& ws, std::int64_t row, int head,
                                int n) const {
    const int c = in.chunk_size;
    const int dim = in.x.key_dim;
    A* kk = ws.products;
    A* qk = ws.products + std::int64_t{c} * c;
    lower_gram(team, n, dim, ws.qk, dim, ws.qk, dim, kk, c);
    lower_gram(team, n, dim, ws.qk + std::int64_t{n} * dim, dim, ws.qk, dim, qk, c);
    const A* between = ws.decay.between;
    const A* beta = ws.decay.beta;
    A* strict = ws.strict;
    A* scores = ws.scores;
    const A scale = in.scale;
    for_elements(team, n, n, [=](int i, int j) {
      const int at = i * c + j;
      strict[at] = j < i ? beta[i] * kk[at] * between[at] : A(0);
      scores[at] = j <= i ? scale * qk[at] * between[at] : A(0);
    });
    barrier(team);
    invert_unit_lower(team, n, ws.strict, ws.inverse, c, ws.products);
    if (saved_inverse == nullptr) return;
    const A* inverse = ws.inverse;
    const std::int64_t stride = std::int64_t{in.x.value_heads} * c;
    T* out = saved_inverse + (row * in.x.value_heads + head) * c;
    for_elements(team, n, c, [=](int i, int j) {
      out[i * stride + j] = j < n ? static_cast<T>(inverse[i * c + j]) : T(0);
    });
  }

  /// new_values = v_new, o of the chunk
  KOKKOS_FUNCTION void outputs(const TeamMember& team, const Workspace<A>& ws, std::int64_t row, int head,
                               int n) const {
    const int dim = in.x.value_dim;
    const std::int64_t stride = in.value_stride();
    team_gemm(team, as_is, as_is, 2 * n, dim, in.x.key_dim, A(1), ws.qk, in.x.key_dim, ws.state, dim, A(0),
              ws.read, dim);
    const T* v = in.v + in.value_at(row, head);
    T* out = o + in.value_at(row, head);
    const A* recalled = ws.read;
    const A* asked = ws.read + std::int64_t{n} * dim;
    const A* beta = ws.decay.beta;
    const A* from = ws.decay.from;
    A* values = ws.values;
    const A scale = in.scale;
    for_rows(team, n, [&](int i) {
      const A b = beta[i];
      const A decayed = from[i];
      const A factor = scale * decayed;
      for_lanes(team, dim, [=](int c) {
        values[i * dim + c] = b * (static_cast<A>(v[i * stride + c]) - decayed * recalled[i * dim + c]);
        out[i * stride + c] = static_cast<T>(factor * asked[i * dim + c]);
      });
    });
    lower_times(team, n, dim, ws.inverse, in.chunk_size, ws.values, dim, A(0), ws.new_values, dim);
    lower_times(team, n, dim, ws.scores, in.chunk_size, ws.new_values, dim, A(1), out, stride);
  }

  /// state <- e_last state + k^T (f v_new)
  KOKKOS_FUNCTION void advance(const TeamMember& team, const Workspace<A>& ws, int n) const {
    const int dim = in.x.value_dim;
    const A* to_end = ws.decay.to_end;
    A* new_values = ws.new_values;
    for_elements(team, n, dim, [=](int i, int c) { new_values[i * dim + c] *= to_end[i]; });
    barrier(team);
    team_gemm(team, transposed, as_is, in.x.key_dim, dim, n, A(1), ws.qk, in.x.key_dim, ws.new_values, dim,
              ws.decay.last(n), ws.state, dim);
  }
};

}  // namespace

template <class T>
ForwardResult<GdnSaved<T>, T> forward(Runtime& runtime, const Extents& x, const GdnInputs<T>& inputs,
                                      const Options& options) {
  using A = Accumulate<T>;
  ForwardResult<GdnSaved<T>, T> result;
  result.o = runtime.allocate<T>("recurrence o", {x.batch, x.tokens, x.value_heads, x.value_dim});
  if (options.output_final_state)
    result.final_state =
        runtime.allocate<A>("recurrence state", {x.sequences, x.value_heads, x.key_dim, x.value_dim});
  if (options.save_for_backward)
    result.saved.inverse =
        runtime.allocate<T>("recurrence inverse", {x.batch, x.tokens, x.value_heads, options.chunk_size});
  const Workers workers(runtime.compute(), x);
  const std::int64_t size = Workspace<A>(Carver<A>(nullptr), x.key_dim, x.value_dim, options.chunk_size).size;
  const auto workspaces = runtime.allocate<A>("recurrence workspace", {workers.count, size});
  for_each_item(runtime.compute(), "deltaport: gdn forward", workers,
                GdnForward<T>{GdnPointers<T>(x, inputs, options), result.o.data(), result.final_state.data(),
                              result.saved.inverse.data(), workspaces.data(), size});
  zero_uncovered_rows(runtime.compute(), x, result.o);
  return result;
}

template ForwardResult<GdnSaved<float>, float> forward<float>(Runtime&, const Extents&,
                                                              const GdnInputs<float>&, const Options&);
template ForwardResult<GdnSaved<double>, double> forward<double>(Runtime&, const Extents&,
                                                                 const GdnInputs<double>&, const Options&);

}  // namespace deltaport::recurrence::portable
