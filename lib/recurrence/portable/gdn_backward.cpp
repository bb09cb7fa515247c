// SPDX-License-Identifier: Apache-2.0
// Adjoint of the chunked GDN. A first walk recomputes the state before each chunk and its v_new; a second
// walk goes back over the chunks with dh, the gradient of the state after the chunk. With e, f, D as in
// gdn_forward.cpp and A the saved inverse:
//   dR  = A^T (P^T do + f (k dh))                     dv = beta dR
//   L   = scale lower((do v_new^T) D)                 M  = -strict_lower((dR v_new^T) D)
//   Y   = [scale e do; -e dR]                         X  = Y S^T
//   dq  = X_q + L k                                   row = X_k + M k      (gradient of beta k_i as a row)
//   col = f (v_new dh^T) + L^T q + M^T (beta k)       dk = beta row + col
//   dbeta_i = v_i.dR_i + k_i.row_i                    dh <- e_last dh + [q; beta k]^T Y
// dg_t adds up every decay that step t takes part in, and only those: suffix sums of what reads the state,
// prefix sums of what writes it, and pairs i >= t > j. Nothing is added that would have to cancel, so strong
// decay keeps its accuracy.
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
  A* dh;                      // [K, V]
  A *keys, *qk;               // [C, K] k; [2C, K] q and beta k
  A* products;                // [2C, C] q k^T and beta k k^T
  A* scores;                  // [C, C] P
  A* pairs;                   // [2C, C] L and M
  A* values;                  // [C, V]
  A* gradients;               // [2C, V] do and dR
  A* scaled;                  // [2C, V] Y
  A* rows;                    // [2C, K] X, then dq's first part and row
  A* columns;                 // [C, K] col
  A *reads, *writes, *whole;  // [C] parts of dg
  GdnDecay<A> decay;
  std::int64_t size;

  KOKKOS_INLINE_FUNCTION Workspace(Carver<A> carver, std::int64_t k, std::int64_t v, int c)
      : dh(carver.take(k * v)),
        keys(carver.take(c * k)),
        qk(carver.take(2 * c * k)),
        products(carver.take(2 * std::int64_t{c} * c)),
        scores(carver.take(std::int64_t{c} * c)),
        pairs(carver.take(2 * std::int64_t{c} * c)),
        values(carver.take(c * v)),
        gradients(carver.take(2 * c * v)),
        scaled(carver.take(2 * c * v)),
        rows(carver.take(2 * c * k)),
        columns(carver.take(c * k)),
        reads(carver.take(c)),
        writes(carver.take(c)),
        whole(carver.take(k)),
        decay(carver, c),
        size(carver.used) {}
};

template <class T>
struct GdnBackward {
  using A = Accumulate<T>;
  GdnPointers<T> in;
  const T *inverse, *d_o;
  const A* d_final_state;           // null: zero
  T *dq, *dk, *dv;                  // dq and dk per value head
  A *dg, *dbeta, *d_initial_state;  // d_initial_state null: not asked for
  A *workspaces, *store;
  std::int64_t workspace_size;
  ChunkStore chunks;  // record: state [K, V], v_new [C, V]
  std::int64_t first = 0;

  /// The chunk at hand.
  struct Chunk {
    std::int64_t row;
    int head, n;
    A *state, *new_values;
  };

  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const FlushDenormals flush;
    const Extents& x = in.x;
    const Item item = item_of(team, x, first);
    const Workspace<A> ws(Carver<A>(workspaces + item.worker * workspace_size), x.key_dim, x.value_dim,
                          in.chunk_size);
    const std::int64_t at = (item.sequence * x.value_heads + item.head) * state_size();
    const Span span = x.span(item.sequence);
    const std::int64_t count = (span.end - span.begin + in.chunk_size - 1) / in.chunk_size;
    for (std::int64_t c = 0; c < count; ++c)
      recompute(team, ws, chunk(item, span, c), chunk(item, span, c + 1), c, at);
    copy_state(team, d_final_state == nullptr ? nullptr : d_final_state + at, ws.dh);
    for (std::int64_t c = count - 1; c >= 0; --c) {
      const Chunk here = chunk(item, span, c);
      load(team, ws, here);
      value_gradients(team, ws, here);
      key_gradients(team, ws, here);
      gate_gradients(team, ws, here);
    }
    barrier(team);
    if (d_initial_state != nullptr) copy_state(team, ws.dh, d_initial_state + at);
    barrier(team);
  }

 private:
  KOKKOS_INLINE_FUNCTION std::int64_t state_size() const {
    return std::int64_t{in.x.key_dim} * in.x.value_dim;
  }

  KOKKOS_INLINE_FUNCTION Chunk chunk(const Item& item, const Span& span, std::int64_t index) const {
    const std::int64_t row = span.begin + index * in.chunk_size;
    const std::int64_t left = span.end - row;
    A* record = store + chunks.offset(in.x, item, index);
    return {row, item.head, static_cast<int>(left < in.chunk_size ? left : in.chunk_size), record,
            record + (state_size() + 15) / 16 * 16};
  }

  KOKKOS_FUNCTION void copy_state(const TeamMember& team, const A* from, A* to) const {
    const int columns = in.x.value_dim;
    for_elements(team, in.x.key_dim, columns, [=](int a, int c) {
      const std::int64_t i = std::int64_t{a} * columns + c;
      to[i] = from == nullptr ? A(0) : from[i];
    });
  }

  KOKKOS_FUNCTION void load_keys(const TeamMember& team, const Workspace<A>& ws, const Chunk& here) const {
    const int dim = in.x.key_dim;
    const std::int64_t stride = in.key_stride();
    const T* k = in.k + in.key_at(here.row, here.head);
    A* keys = ws.keys;
    for_elements(team, here.n, dim,
                 [=](int i, int a) { keys[i * dim + a] = static_cast<A>(k[i * stride + a]); });
  }

  /// v_new of the chunk, and the state before the next one.
  KOKKOS_FUNCTION void recompute(const TeamMember& team, const Workspace<A>& ws, const Chunk& here,
                                 const Chunk& next, std::int64_t index, std::int64_t at) const {
    const int n = here.n;
    const int dim = in.x.value_dim;
    const std::int64_t stride = in.value_stride();
    if (index == 0)
      copy_state(team, in.initial_state == nullptr ? nullptr : in.initial_state + at, here.state);
    load_keys(team, ws, here);
    ws.decay.load(team, in, here.row, here.head, n);
    team_gemm(team, as_is, as_is, n, dim, in.x.key_dim, A(1), ws.keys, in.x.key_dim, here.state, dim, A(0),
              ws.values, dim);
    const T* v = in.v + in.value_at(here.row, here.head);
    A* values = ws.values;
    const A* beta = ws.decay.beta;
    const A* from = ws.decay.from;
    for_elements(team, n, dim, [=](int i, int c) {
      values[i * dim + c] = beta[i] * (static_cast<A>(v[i * stride + c]) - from[i] * values[i * dim + c]);
    });
    const std::int64_t inverse_stride = std::int64_t{in.x.value_heads} * in.chunk_size;
    lower_times(team, n, dim, inverse + (here.row * in.x.value_heads + here.head) * in.chunk_size,
                inverse_stride, values, dim, A(0), here.new_values, dim);
    if (next.n <= 0) return;
    const A* new_values = here.new_values;
    const A* to_end = ws.decay.to_end;
    for_elements(team, n, dim,
                 [=](int i, int c) { values[i * dim + c] = to_end[i] * new_values[i * dim + c]; });
    copy_state(team, here.state, next.state);
    team_gemm(team, transposed, as_is, in.x.key_dim, dim, n, A(1), ws.keys, in.x.key_dim, ws.values, dim,
              ws.decay.last(n), next.state, dim);
  }

  /// Everything of the chunk that does not depend on dh: k, [q; beta k], do, the products and P.
  KOKKOS_FUNCTION void load(const TeamMember& team, const Workspace<A>& ws, const Chunk& here) const {
    const int n = here.n;
    const int c = in.chunk_size;
    const int dim = in.x.key_dim;
    barrier(team);
    load_keys(team, ws, here);
    ws.decay.load(team, in, here.row, here.head, n);
    const std::int64_t stride = in.key_stride();
    const T* q = in.q + in.key_at(here.row, here.head);
    A* queries = ws.qk;
    A* erased = ws.qk + std::int64_t{n} * dim;
    const A* keys = ws.keys;
    const A* beta = ws.decay.beta;
    for_elements(team, n, dim, [=](int i, int a) {
      queries[i * dim + a] = static_cast<A>(q[i * stride + a]);
      erased[i * dim + a] = beta[i] * keys[i * dim + a];
    });
    const T* d_out = d_o + in.value_at(here.row, here.head);
    const std::int64_t value_stride = in.value_stride();
    const int columns = in.x.value_dim;
    A* gradients = ws.gradients;
    for_elements(team, n, columns, [=](int i, int j) {
      gradients[i * columns + j] = static_cast<A>(d_out[i * value_stride + j]);
    });
    A* products = ws.products;
    lower_gram(team, n, dim, queries, dim, ws.keys, dim, products, c);
    lower_gram(team, n, dim, erased, dim, ws.keys, dim, products + std::int64_t{c} * c, c);
    const A* between = ws.decay.between;
    A* scores = ws.scores;
    const A scale = in.scale;
    for_elements(team, n, n, [=](int i, int j) {
      scores[i * c + j] = j <= i ? scale * products[i * c + j] * between[i * c + j] : A(0);
    });
  }

  /// dR, dv, L and M.
  KOKKOS_FUNCTION void value_gradients(const TeamMember& team, const Workspace<A>& ws,
                                       const Chunk& here) const {
    const int n = here.n;
    const int c = in.chunk_size;
    const int dim = in.x.value_dim;
    A* values = ws.values;
    A* dr = ws.gradients + std::int64_t{n} * dim;
    team_gemm(team, as_is, as_is, n, dim, in.x.key_dim, A(1), ws.keys, in.x.key_dim, ws.dh, dim, A(0), values,
              dim);
    const A* to_end = ws.decay.to_end;
    for_elements(team, n, dim, [=](int i, int j) { values[i * dim + j] *= to_end[i]; });
    lower_transposed_times(team, n, dim, ws.scores, c, ws.gradients, dim, A(1), values, dim);
    lower_transposed_times(team, n, dim, inverse + (here.row * in.x.value_heads + here.head) * c,
                           std::int64_t{in.x.value_heads} * c, values, dim, A(0), dr, dim);
    T* out = dv + in.value_at(here.row, here.head);
    const std::int64_t stride = in.value_stride();
    const A* beta = ws.decay.beta;
    for_elements(team, n, dim,
                 [=](int i, int j) { out[i * stride + j] = static_cast<T>(beta[i] * dr[i * dim + j]); });
    A* upper = ws.pairs;
    A* lower = ws.pairs + std::int64_t{c} * c;
    lower_gram(team, n, dim, ws.gradients, dim, here.new_values, dim, upper, c);
    lower_gram(team, n, dim, dr, dim, here.new_values, dim, lower, c);
    const A* between = ws.decay.between;
    const A scale = in.scale;
    for_elements(team, n, n, [=](int i, int j) {
      const int at = i * c + j;
      upper[at] = j <= i ? scale * upper[at] * between[at] : A(0);
      lower[at] = j < i ? -lower[at] * between[at] : A(0);
    });
  }

  /// dq, dk, dbeta, the parts of dg, and dh of the chunk before.
  KOKKOS_FUNCTION void key_gradients(const TeamMember& team, const Workspace<A>& ws,
                                     const Chunk& here) const {
    const int n = here.n;
    const int columns = in.x.value_dim;
    const int dim = in.x.key_dim;
    const A* gradients = ws.gradients;
    const A* from = ws.decay.from;
    A* scaled = ws.scaled;
    const A scale = in.scale;
    for_elements(team, 2 * n, columns, [=](int i, int j) {
      scaled[i * columns + j] = (i < n ? scale * from[i] : -from[i - n]) * gradients[i * columns + j];
    });
    team_gemm(team, as_is, transposed, 2 * n, dim, columns, A(1), ws.scaled, columns, here.state, columns,
              A(0), ws.rows, dim);
    team_gemm(team, as_is, transposed, n, dim, columns, A(1), here.new_values, columns, ws.dh, columns, A(0),
              ws.columns, dim);
    state_terms(team, ws, here);
    const int c = in.chunk_size;
    const std::int64_t out_stride = std::int64_t{in.x.value_heads} * dim;
    const std::int64_t out_at = (here.row * in.x.value_heads + here.head) * dim;
    A* rows = ws.rows + std::int64_t{n} * dim;
    const A* lower = ws.pairs + std::int64_t{c} * c;
    lower_times(team, n, dim, ws.pairs, c, ws.keys, dim, A(1), dq + out_at, out_stride);
    lower_times(team, n, dim, lower, c, ws.keys, dim, A(1), rows, dim);
    lower_transposed_times(team, n, dim, ws.pairs, c, ws.qk, dim, A(1), ws.columns, dim);
    lower_transposed_times(team, n, dim, lower, c, ws.qk + std::int64_t{n} * dim, dim, A(1), ws.columns, dim);
    const A* dr = ws.gradients + std::int64_t{n} * columns;
    const T* v = in.v + in.value_at(here.row, here.head);
    for_rows(team, n, [&](int i) {
      const A beta = ws.decay.beta[i];
      const A* row = rows + i * dim;
      const A* column = ws.columns + i * dim;
      T* out = dk + out_at + i * out_stride;
      const A sum = dot<A>(team, columns, v + i * in.value_stride(), dr + i * columns) +
                    dot<A>(team, dim, ws.keys + i * dim, row);
      dbeta[(here.row + i) * in.x.value_heads + here.head] = sum;
      for_lanes(team, dim, [=](int a) { out[a] = static_cast<T>(beta * row[a] + column[a]); });
    });
    team_gemm(team, transposed, as_is, dim, columns, 2 * n, A(1), ws.qk, dim, ws.scaled, columns,
              ws.decay.last(n), ws.dh, columns);
  }

  /// The inter-chunk parts of dq and of dg, before the chunk's own pairs are added to rows and columns.
  KOKKOS_FUNCTION void state_terms(const TeamMember& team, const Workspace<A>& ws, const Chunk& here) const {
    const int n = here.n;
    const int dim = in.x.key_dim;
    const int columns = in.x.value_dim;
    const std::int64_t out_stride = std::int64_t{in.x.value_heads} * dim;
    T* out = dq + (here.row * in.x.value_heads + here.head) * dim;
    for_rows(team, n, [&](int i) {
      const A* asked = ws.rows + i * dim;
      A* written = ws.columns + i * dim;
      const A factor = ws.decay.to_end[i];
      T* out_row = out + i * out_stride;
      for_lanes(team, dim, [=](int a) {
        written[a] *= factor;
        out_row[a] = static_cast<T>(asked[a]);
      });
      ws.reads[i] = dot<A>(team, dim, ws.qk + i * dim, asked) +
                    dot<A>(team, dim, ws.qk + (n + i) * dim, ws.rows + (n + i) * dim);
      ws.writes[i] = dot<A>(team, dim, ws.keys + i * dim, written);
    });
    for_rows(team, dim, [&](int a) {
      ws.whole[a] =
          dot<A>(team, columns, here.state + std::int64_t{a} * columns, ws.dh + std::int64_t{a} * columns);
    });
  }

  /// dg of the chunk.
  KOKKOS_FUNCTION void gate_gradients(const TeamMember& team, const Workspace<A>& ws,
                                      const Chunk& here) const {
    const int n = here.n;
    const int c = in.chunk_size;
    A* products = ws.products;
    const A* beta_products = ws.products + std::int64_t{c} * c;
    const A* upper = ws.pairs;
    const A* lower = ws.pairs + std::int64_t{c} * c;
    const int dim = in.x.key_dim;
    // products[t, j] = sum over i >= t of what the pair (i, j) adds
    for (int t = n - 1; t >= 0; --t) {
      for_each(team, t, [=](int j) {
        const int at = t * c + j;
        const A after = t + 1 < n ? products[at + c] : A(0);
        products[at] = after + upper[at] * products[at] + lower[at] * beta_products[at];
      });
      barrier(team);
    }
    const A last = ws.decay.last(n);
    const A* whole = ws.whole;
    const A* writes = ws.writes;
    const A* reads = ws.reads;
    A* out = dg + here.row * in.x.value_heads + here.head;
    const std::int64_t heads = in.x.value_heads;
    once(team, [=]() {
      A carried = 0;
      for (int a = 0; a < dim; ++a) carried += whole[a];
      carried *= last;
      for (int t = 0; t < n; ++t) {
        out[t * heads] = carried;
        carried += writes[t];
      }
      A read = 0;
      for (int t = n - 1; t >= 0; --t) {
        read += reads[t];
        A sum = out[t * heads] + read;
        for (int j = 0; j < t; ++j) sum += products[t * c + j];
        out[t * heads] = sum;
      }
    });
    barrier(team);
  }
};

}  // namespace

template <class T>
GdnGradients<T> backward(Runtime& runtime, const Extents& x, const GdnSaved<T>& saved, const Tensor<T>& d_o,
                         const Tensor<Accumulate<T>>& d_final_state) {
  using A = Accumulate<T>;
  const ExecutionSpace& exec = runtime.compute();
  const int c = saved.options.chunk_size;
  GroupGradient<T> dq(runtime, "recurrence dq", x, x.key_heads, x.key_dim);
  GroupGradient<T> dk(runtime, "recurrence dk", x, x.key_heads, x.key_dim);
  GdnGradients<T> out;
  out.dv = runtime.allocate<T>("recurrence dv", saved.inputs.v.shape());
  out.dg = runtime.allocate<A>("recurrence dg", saved.inputs.g.shape());
  out.dbeta = runtime.allocate<A>("recurrence dbeta", saved.inputs.g.shape());
  if (saved.inputs.initial_state.defined())
    out.dinitial_state = runtime.allocate<A>("recurrence dinitial_state", saved.inputs.initial_state.shape());
  const Workers workers(exec, x);
  const std::int64_t size = Workspace<A>(Carver<A>(nullptr), x.key_dim, x.value_dim, c).size;
  const ChunkStore chunks{chunk_record<A>(x, c), most_chunks(x, c), c};
  const auto workspaces = runtime.allocate<A>("recurrence workspace", {workers.count, size});
  const auto store = runtime.allocate<A>("recurrence states", {chunks.elements(x, workers)});
  GdnBackward<T> kernel{GdnPointers<T>(x, saved.inputs, saved.options),
                        saved.inverse.data(),
                        d_o.data(),
                        d_final_state.data(),
                        dq.per_head.data(),
                        dk.per_head.data(),
                        out.dv.data(),
                        out.dg.data(),
                        out.dbeta.data(),
                        out.dinitial_state.data(),
                        workspaces.data(),
                        store.data(),
                        size,
                        chunks};
  for_each_item(exec, "deltaport: gdn backward", workers, kernel);
  out.dq = dq.finish(exec, x);
  out.dk = dk.finish(exec, x);
  zero_uncovered_rows(exec, x, out.dv);
  zero_uncovered_rows(exec, x, out.dg);
  zero_uncovered_rows(exec, x, out.dbeta);
  return out;
}

template GdnGradients<float> backward<float>(Runtime&, const Extents&, const GdnSaved<float>&,
                                             const Tensor<float>&, const Tensor<float>&);
template GdnGradients<double> backward<double>(Runtime&, const Extents&, const GdnSaved<double>&,
                                               const Tensor<double>&, const Tensor<double>&);

}  // namespace deltaport::recurrence::portable
