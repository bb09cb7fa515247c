// SPDX-License-Identifier: Apache-2.0
// Adjoint of the chunked GDN2; P and A are the saved scores and inverse, the rest as in gdn_backward.cpp:
//   dR  = A^T (P^T do + (k f) dh)                  dv = w dR, dw = v dR
//   L   = scale lower(do v_new^T)                  M  = -strict_lower(dR v_new^T)
//   dq_i  = scale e_i (do S^T)_i + sum_j L_ij k_j D_ij
//   dbk_i = -e_i (dR S^T)_i      + sum_j M_ij k_j D_ij
//   col_j = f_j (v_new dh^T)_j   + sum_i (L_ij q_i + M_ij (b k)_i) D_ij
//   db = k dbk, dk = b dbk + col                   dh <- e_last dh + scale (q e)^T do - (b k e)^T dR
// The sums over D run block by block with the factors of the forward pass. As for GDN each dg_t adds up only
// the decays that step t takes part in.
#include "recurrence/implementations.hpp"
#include "recurrence/portable/flush_denormals.hpp"
#include "recurrence/portable/gdn2_chunk.hpp"
#include "recurrence/portable/pairs.hpp"
#include "recurrence/portable/triangle.hpp"
#include "recurrence/portable/workers.hpp"
#include "recurrence/rows.hpp"

namespace deltaport::recurrence::portable {
namespace {

#define DELTAPORT_PAIR_FUNCTION KOKKOS_INLINE_FUNCTION
#include "recurrence/portable/pair_kernels.hpp"
#undef DELTAPORT_PAIR_FUNCTION

template <class A>
struct Workspace {
  A* dh;          // [K, V]
  A* decayed;     // [2C, K] q e and b k e; or k f
  A* pairs;       // [2C, C] L and M
  A* values;      // [C, V]
  A* gradients;   // [2C, V] do and dR
  A* rows;        // [2C, K] dq and dbk
  A* columns;     // [C, K] col
  A* dg;          // [C, K]
  A* block_rows;  // operands and products of one pair block
  A* block_columns;
  A* row_products;
  A* column_products;
  A* running;  // [K]
  Gdn2Channels<A> channels;
  std::int64_t size;

  KOKKOS_INLINE_FUNCTION Workspace(Carver<A> carver, std::int64_t k, std::int64_t v, int c)
      : dh(carver.take(k * v)),
        decayed(carver.take(2 * c * k)),
        pairs(carver.take(2 * std::int64_t{c} * c)),
        values(carver.take(c * v)),
        gradients(carver.take(2 * c * v)),
        rows(carver.take(2 * c * k)),
        columns(carver.take(c * k)),
        dg(carver.take(c * k)),
        block_rows(carver.take(c * k)),
        block_columns(carver.take(c / 2 * k)),
        row_products(carver.take(c * k)),
        column_products(carver.take(c / 2 * k)),
        running(carver.take(k)),
        channels(carver, c, static_cast<int>(k)),
        size(carver.used) {}
};

template <class T>
struct Gdn2Backward {
  using A = Accumulate<T>;
  Gdn2Pointers<T> in;
  const T *scores, *inverse, *d_o;
  const A* d_final_state;  // null: zero
  T *dq, *dk, *dv;         // dq, dk, dg and db per value head
  A* dg;
  T *db, *dw;
  A* d_initial_state;  // null: not asked for
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
      ws.channels.load(team, in, here.row, here.head, here.n);
      value_gradients(team, ws, here);
      state_gradients(team, ws, here);
      gates_through_state(team, ws, here);
      for_pair_blocks(in.chunk_size, here.n,
                      [&](const PairBlock& block) { pair_gradients(team, ws, here.n, block); });
      diagonal_pairs(team, ws, here.n);
      write(team, ws, here);
      retreat(team, ws, here.n);
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

  /// decayed = k f
  KOKKOS_FUNCTION void decay_keys(const TeamMember& team, const Workspace<A>& ws, int n) const {
    const int dim = in.x.key_dim;
    const A* keys = ws.channels.keys;
    const A* to_end = ws.channels.to_end;
    A* out = ws.decayed;
    for_elements(team, n, dim,
                 [=](int i, int a) { out[i * dim + a] = keys[i * dim + a] * to_end[i * dim + a]; });
  }

  /// v_new of the chunk, and the state before the next one.
  KOKKOS_FUNCTION void recompute(const TeamMember& team, const Workspace<A>& ws, const Chunk& here,
                                 const Chunk& next, std::int64_t index, std::int64_t at) const {
    const int n = here.n;
    const int dim = in.x.value_dim;
    const int key_dim = in.x.key_dim;
    if (index == 0)
      copy_state(team, in.initial_state == nullptr ? nullptr : in.initial_state + at, here.state);
    ws.channels.load(team, in, here.row, here.head, n);
    const A* erased = ws.channels.erased(n);
    const A* from = ws.channels.from;
    A* decayed = ws.decayed;
    for_elements(team, n, key_dim, [=](int i, int a) {
      decayed[i * key_dim + a] = erased[i * key_dim + a] * from[i * key_dim + a];
    });
    team_gemm(team, as_is, as_is, n, dim, key_dim, A(-1), ws.decayed, key_dim, here.state, dim, A(0),
              ws.values, dim);
    const std::int64_t stride = in.value_stride();
    const T* v = in.v + in.value_at(here.row, here.head);
    const T* w = in.w + in.value_at(here.row, here.head);
    A* values = ws.values;
    for_elements(team, n, dim, [=](int i, int c) {
      values[i * dim + c] += static_cast<A>(w[i * stride + c]) * static_cast<A>(v[i * stride + c]);
    });
    lower_times(team, n, dim, inverse + in.pair_at(here.row, here.head), in.pair_stride(), values, dim, A(0),
                here.new_values, dim);
    if (next.n <= 0) return;
    decay_keys(team, ws, n);
    const A* last = from + (n - 1) * key_dim;
    const A* state = here.state;
    A* next_state = next.state;
    for_elements(team, key_dim, dim, [=](int a, int c) {
      const std::int64_t i = std::int64_t{a} * dim + c;
      next_state[i] = last[a] * state[i];
    });
    team_gemm(team, transposed, as_is, key_dim, dim, n, A(1), ws.decayed, key_dim, here.new_values, dim, A(1),
              next.state, dim);
  }

  /// do, dR, dv, dw, L and M.
  KOKKOS_FUNCTION void value_gradients(const TeamMember& team, const Workspace<A>& ws,
                                       const Chunk& here) const {
    const int n = here.n;
    const int c = in.chunk_size;
    const int dim = in.x.value_dim;
    const std::int64_t stride = in.value_stride();
    const std::int64_t at = in.value_at(here.row, here.head);
    const T* d_out = d_o + at;
    A* gradients = ws.gradients;
    A* dr = ws.gradients + std::int64_t{n} * dim;
    for_elements(team, n, dim,
                 [=](int i, int j) { gradients[i * dim + j] = static_cast<A>(d_out[i * stride + j]); });
    decay_keys(team, ws, n);
    team_gemm(team, as_is, as_is, n, dim, in.x.key_dim, A(1), ws.decayed, in.x.key_dim, ws.dh, dim, A(0),
              ws.values, dim);
    lower_transposed_times(team, n, dim, scores + in.pair_at(here.row, here.head), in.pair_stride(),
                           ws.gradients, dim, A(1), ws.values, dim);
    lower_transposed_times(team, n, dim, inverse + in.pair_at(here.row, here.head), in.pair_stride(),
                           ws.values, dim, A(0), dr, dim);
    const T* v = in.v + at;
    const T* w = in.w + at;
    T* dv_out = dv + at;
    T* dw_out = dw + at;
    for_elements(team, n, dim, [=](int i, int j) {
      const A value = dr[i * dim + j];
      dv_out[i * stride + j] = static_cast<T>(static_cast<A>(w[i * stride + j]) * value);
      dw_out[i * stride + j] = static_cast<T>(static_cast<A>(v[i * stride + j]) * value);
    });
    A* upper = ws.pairs;
    A* lower = ws.pairs + std::int64_t{c} * c;
    lower_gram(team, n, dim, ws.gradients, dim, here.new_values, dim, upper, c);
    lower_gram(team, n, dim, dr, dim, here.new_values, dim, lower, c);
    const A scale = in.scale;
    for_elements(team, n, n, [=](int i, int j) {
      upper[i * c + j] = j <= i ? scale * upper[i * c + j] : A(0);
      lower[i * c + j] = j < i ? -lower[i * c + j] : A(0);
    });
  }

  /// What q, b k and k get through the state: the first terms of dq, dbk and col.
  KOKKOS_FUNCTION void state_gradients(const TeamMember& team, const Workspace<A>& ws,
                                       const Chunk& here) const {
    const int n = here.n;
    const int dim = in.x.key_dim;
    const int columns = in.x.value_dim;
    team_gemm(team, as_is, transposed, 2 * n, dim, columns, A(1), ws.gradients, columns, here.state, columns,
              A(0), ws.rows, dim);
    team_gemm(team, as_is, transposed, n, dim, columns, A(1), here.new_values, columns, ws.dh, columns, A(0),
              ws.columns, dim);
    const A* from = ws.channels.from;
    const A* to_end = ws.channels.to_end;
    A* rows = ws.rows;
    A* written = ws.columns;
    const A scale = in.scale;
    for_elements(team, n, dim, [=](int i, int a) {
      const int at = i * dim + a;
      rows[at] *= scale * from[at];
      rows[n * dim + at] *= -from[at];
      written[at] *= to_end[at];
    });
    for_rows(team, dim, [&](int a) {
      ws.running[a] =
          dot<A>(team, columns, here.state + std::int64_t{a} * columns, ws.dh + std::int64_t{a} * columns);
    });
    barrier(team);
  }

  /// dg through the state: carried across the chunk, written before t, read at or after t.
  KOKKOS_FUNCTION void gates_through_state(const TeamMember& team, const Workspace<A>& ws,
                                           const Chunk& here) const {
    const int n = here.n;
    const int dim = in.x.key_dim;
    const A* keys = ws.channels.keys;
    const A* qb = ws.channels.qb;
    const A* last = ws.channels.from + (n - 1) * dim;
    const A* rows = ws.rows;
    const A* written = ws.columns;
    A* out = ws.dg;
    A* running = ws.running;
    for_each(team, dim, [=](int a) { running[a] *= last[a]; });
    for (int t = 0; t < n; ++t)
      for_each(team, dim, [=](int a) {
        const int at = t * dim + a;
        out[at] = running[a];
        running[a] += keys[at] * written[at];
      });
    for_each(team, dim, [=](int a) { running[a] = A(0); });
    for (int t = n - 1; t >= 0; --t)
      for_each(team, dim, [=](int a) {
        const int at = t * dim + a;
        running[a] += qb[at] * rows[at] + qb[n * dim + at] * rows[n * dim + at];
        out[at] += running[a];
      });
    barrier(team);
  }

  /// Pairs of one off-diagonal block.
  KOKKOS_FUNCTION void pair_gradients(const TeamMember& team, const Workspace<A>& ws, int n,
                                      const PairBlock& block) const {
    const int dim = in.x.key_dim;
    const int c = in.chunk_size;
    scale_pair_block(team, ws.channels, n, block, ws.block_rows, ws.block_columns, ws.running);
    const A* upper = ws.pairs + block.anchor * c + block.begin;
    const A* lower = upper + std::int64_t{c} * c;
    const A* erased_rows = ws.block_rows + block.rows * dim;
    team_gemm(team, as_is, as_is, block.rows, dim, block.columns(), A(1), upper, c, ws.block_columns, dim,
              A(0), ws.row_products, dim);
    team_gemm(team, as_is, as_is, block.rows, dim, block.columns(), A(1), lower, c, ws.block_columns, dim,
              A(0), ws.row_products + block.rows * dim, dim);
    team_gemm(team, transposed, as_is, block.columns(), dim, block.rows, A(1), upper, c, ws.block_rows, dim,
              A(0), ws.column_products, dim);
    team_gemm(team, transposed, as_is, block.columns(), dim, block.rows, A(1), lower, c, erased_rows, dim,
              A(1), ws.column_products, dim);
    row_pairs(team, ws, n, block);
    column_pairs(team, ws, block);
    barrier(team);
  }

  KOKKOS_FUNCTION void row_pairs(const TeamMember& team, const Workspace<A>& ws, int n,
                                 const PairBlock& block) const {
    const int dim = in.x.key_dim;
    const int half = block.rows * dim;
    const A* step = ws.channels.step;
    const A* products = ws.row_products;
    const A* operands = ws.block_rows;
    A* rows = ws.rows;
    A* out = ws.dg;
    A* running = ws.running;
    for (int r = 0; r < block.rows; ++r)
      for_each(team, dim, [=](int a) {
        const int at = (block.anchor + r) * dim + a;
        const A decay = r == 0 ? step[at] : running[a] * step[at];
        running[a] = decay;
        rows[at] += decay * products[r * dim + a];
        rows[n * dim + at] += decay * products[half + r * dim + a];
      });
    for (int r = block.rows - 1; r >= 0; --r)
      for_each(team, dim, [=](int a) {
        const int i = r * dim + a;
        const A here = operands[i] * products[i] + operands[half + i] * products[half + i];
        const A sum = r == block.rows - 1 ? here : running[a] + here;
        running[a] = sum;
        out[(block.anchor + r) * dim + a] += sum;
      });
  }

  KOKKOS_FUNCTION void column_pairs(const TeamMember& team, const Workspace<A>& ws,
                                    const PairBlock& block) const {
    const int dim = in.x.key_dim;
    const A* step = ws.channels.step;
    const A* products = ws.column_products;
    const A* operands = ws.block_columns;
    A* columns = ws.columns;
    A* out = ws.dg;
    A* running = ws.running;
    for (int j = block.anchor - 1; j >= block.begin; --j) {
      const bool last = j + 1 == block.anchor;
      for_each(team, dim, [=](int a) {
        const A decay = last ? A(1) : running[a] * step[(j + 1) * dim + a];
        running[a] = decay;
        columns[j * dim + a] += decay * products[(j - block.begin) * dim + a];
      });
    }
    for_each(team, dim, [=](int a) { running[a] = A(0); });
    for (int j = block.begin; j < block.anchor; ++j)
      for_each(team, dim, [=](int a) {
        const int i = (j - block.begin) * dim + a;
        out[j * dim + a] += running[a];
        running[a] += operands[i] * products[i];
      });
  }

  KOKKOS_FUNCTION void diagonal_pairs(const TeamMember& team, const Workspace<A>& ws, int n) const {
    const int dim = in.x.key_dim;
    const int c = in.chunk_size;
    const Gdn2Channels<A>& x = ws.channels;
    const A* erased = x.erased(n);
    A* d_erased = ws.rows + std::int64_t{n} * dim;
    barrier(team);
    for (int b = 0; b < n; b += pair_block) {
      const int rows = n - b < pair_block ? n - b : pair_block;
      const int at = b * dim;
      const A* upper = ws.pairs + b * c + b;
      const A* lower = upper + std::int64_t{c} * c;
      KOKKOS_IF_ON_HOST(
          (host_diagonal_gradients(rows, dim, dim, x.qb + at, erased + at, x.keys + at, x.step + at, upper,
                                   lower, c, ws.rows + at, d_erased + at, ws.columns + at, ws.dg + at);))
      KOKKOS_IF_ON_DEVICE((for_each(team, dim, [&](int a) {
                             diagonal_gradients<A, 1>(rows, dim, x.qb + at + a, erased + at + a,
                                                      x.keys + at + a, x.step + at + a, upper, lower, c,
                                                      ws.rows + at + a, d_erased + at + a,
                                                      ws.columns + at + a, ws.dg + at + a);
                           });))
    }
    barrier(team);
  }

  KOKKOS_FUNCTION void write(const TeamMember& team, const Workspace<A>& ws, const Chunk& here) const {
    const int n = here.n;
    const int dim = in.x.key_dim;
    const std::int64_t stride = std::int64_t{in.x.value_heads} * dim;
    const std::int64_t at = (here.row * in.x.value_heads + here.head) * dim;
    const T* b = in.b + in.gate_at(here.row, here.head);
    const std::int64_t gate_stride = in.gate_stride();
    const A* keys = ws.channels.keys;
    const A* rows = ws.rows;
    const A* columns = ws.columns;
    const A* gates = ws.dg;
    T* dq_out = dq + at;
    T* dk_out = dk + at;
    T* db_out = db + at;
    A* dg_out = dg + at;
    for_elements(team, n, dim, [=](int i, int a) {
      const int from = i * dim + a;
      const A d_erased = rows[n * dim + from];
      dq_out[i * stride + a] = static_cast<T>(rows[from]);
      dk_out[i * stride + a] =
          static_cast<T>(static_cast<A>(b[i * gate_stride + a]) * d_erased + columns[from]);
      db_out[i * stride + a] = static_cast<T>(keys[from] * d_erased);
      dg_out[i * stride + a] = gates[from];
    });
  }

  /// dh of the chunk before.
  KOKKOS_FUNCTION void retreat(const TeamMember& team, const Workspace<A>& ws, int n) const {
    const int dim = in.x.key_dim;
    const int columns = in.x.value_dim;
    const A* qb = ws.channels.qb;
    const A* from = ws.channels.from;
    const A* last = from + (n - 1) * dim;
    A* decayed = ws.decayed;
    A* dh = ws.dh;
    for_elements(team, 2 * n, dim, [=](int i, int a) {
      decayed[i * dim + a] = qb[i * dim + a] * from[(i < n ? i : i - n) * dim + a];
    });
    for_elements(team, dim, columns, [=](int a, int c) { dh[std::int64_t{a} * columns + c] *= last[a]; });
    team_gemm(team, transposed, as_is, dim, columns, n, in.scale, decayed, dim, ws.gradients, columns, A(1),
              dh, columns);
    team_gemm(team, transposed, as_is, dim, columns, n, A(-1), decayed + std::int64_t{n} * dim, dim,
              ws.gradients + std::int64_t{n} * columns, columns, A(1), dh, columns);
  }
};

}  // namespace

template <class T>
Gdn2Gradients<T> backward(Runtime& runtime, const Extents& x, const Gdn2Saved<T>& saved, const Tensor<T>& d_o,
                          const Tensor<Accumulate<T>>& d_final_state) {
  using A = Accumulate<T>;
  const ExecutionSpace& exec = runtime.compute();
  const int c = saved.options.chunk_size;
  GroupGradient<T> dq(runtime, "recurrence dq", x, x.key_heads, x.key_dim);
  GroupGradient<T> dk(runtime, "recurrence dk", x, x.key_heads, x.key_dim);
  GroupGradient<A> dg(runtime, "recurrence dg", x, x.gate_heads, x.key_dim);
  GroupGradient<T> db(runtime, "recurrence db", x, x.gate_heads, x.key_dim);
  Gdn2Gradients<T> out;
  out.dv = runtime.allocate<T>("recurrence dv", saved.inputs.v.shape());
  out.dw = runtime.allocate<T>("recurrence dw", saved.inputs.v.shape());
  if (saved.inputs.initial_state.defined())
    out.dinitial_state = runtime.allocate<A>("recurrence dinitial_state", saved.inputs.initial_state.shape());
  const Workers workers(exec, x);
  const std::int64_t size = Workspace<A>(Carver<A>(nullptr), x.key_dim, x.value_dim, c).size;
  const ChunkStore chunks{chunk_record<A>(x, c), most_chunks(x, c), c};
  const auto workspaces = runtime.allocate<A>("recurrence workspace", {workers.count, size});
  const auto store = runtime.allocate<A>("recurrence states", {chunks.elements(x, workers)});
  for_each_item(exec, "deltaport: gdn2 backward", workers,
                Gdn2Backward<T>{Gdn2Pointers<T>(x, saved.inputs, saved.options), saved.scores.data(),
                                saved.inverse.data(), d_o.data(), d_final_state.data(), dq.per_head.data(),
                                dk.per_head.data(), out.dv.data(), dg.per_head.data(), db.per_head.data(),
                                out.dw.data(), out.dinitial_state.data(), workspaces.data(), store.data(),
                                size, chunks});
  out.dq = dq.finish(exec, x);
  out.dk = dk.finish(exec, x);
  out.dg = dg.finish(exec, x);
  out.db = db.finish(exec, x);
  zero_uncovered_rows(exec, x, out.dv);
  zero_uncovered_rows(exec, x, out.dw);
  return out;
}

template Gdn2Gradients<float> backward<float>(Runtime&, const Extents&, const Gdn2Saved<float>&,
                                              const Tensor<float>&, const Tensor<float>&);
template Gdn2Gradients<double> backward<double>(Runtime&, const Extents&, const Gdn2Saved<double>&,
                                                const Tensor<double>&, const Tensor<double>&);

}  // namespace deltaport::recurrence::portable
