// SPDX-License-Identifier: Apache-2.0
// Adjoint of the token-by-token form. States are recomputed: forward keeps one state per checkpoint_tokens
// tokens, and each block of tokens is run again from it before it is walked backwards.
#include <algorithm>
#include <type_traits>

#include "recurrence/implementations.hpp"
#include "recurrence/reference/forward.hpp"
#include "recurrence/rows.hpp"

namespace deltaport::recurrence::reference {
namespace {

/// Where the gradients of the gates go. GDN's sums over the channels follow in SumGdnGates.
template <class T>
struct ChannelGradients {
  using A = Accumulate<T>;
  A* dg;  // [rows, HV, K]
  T* db;  // [rows, HV, K]
  T* dw;  // [rows, HV, V]
};

template <class T, class Gates>
struct Backward {
  using A = Accumulate<T>;
  Call<T, Gates> call;
  std::int64_t first;  // item of league rank 0
  const T* d_o;
  const A* checkpoints;
  A* block_states;  // [items, checkpoint_tokens, K, V]: decay * (state before the token)
  A* d_state;       // [N, HV, K, V]: gradient of the final state, ends as that of the initial one
  T *dq, *dk, *dv;  // per value head
  ChannelGradients<T> channels;

  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const Extents& x = call.x;
    const std::int64_t item = first + team.league_rank();
    const std::int64_t sequence = item / x.value_heads;
    const int head = static_cast<int>(item % x.value_heads);
    const std::int64_t size = std::int64_t{x.key_dim} * x.value_dim;
    A* states = block_states + team.league_rank() * checkpoint_tokens * size;
    A* ds = d_state + item * size;
    auto* r =
        static_cast<A*>(team.team_shmem().get_shmem(2 * sizeof(A) * static_cast<std::size_t>(x.value_dim)));
    A* dr = r + x.value_dim;
    const Span span = x.span(sequence);
    const std::int64_t blocks = (span.end - span.begin + checkpoint_tokens - 1) / checkpoint_tokens;
    for (std::int64_t block = blocks - 1; block >= 0; --block) {
      const std::int64_t begin = span.begin + block * checkpoint_tokens;
      const std::int64_t end = begin + checkpoint_tokens < span.end ? begin + checkpoint_tokens : span.end;
      const std::int64_t slot = x.block_slot(sequence, checkpoint_tokens) + block;
      recompute(team, head, begin, end, checkpoints + (slot * x.value_heads + head) * size, states, r);
      for (std::int64_t row = end - 1; row >= begin; --row)
        token(team, row, head, states + (row - begin) * size, ds, r, dr);
    }
  }

 private:
  KOKKOS_FUNCTION void recompute(const TeamMember& team, int head, std::int64_t begin, std::int64_t end,
                                 const A* start, A* states, A* r) const {
    const std::int64_t size = std::int64_t{call.x.key_dim} * call.x.value_dim;
    const A* from = start;
    for (std::int64_t row = begin; row < end; ++row) {
      A* decayed = states + (row - begin) * size;
      call.decay_and_error(team, row, head, from, decayed, r);
      if (row + 1 == end) break;
      A* next = decayed + size;  // the state after this token, decayed in place by the next turn
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, size),
                           [=](std::int64_t i) { next[i] = decayed[i]; });
      team.team_barrier();
      call.write(team, row, head, next, r);
      from = next;
    }
  }

  /// One token: `p` is the decayed state before it, `ds` the gradient of the state after it, which becomes
  /// the gradient of the state before it.
  KOKKOS_FUNCTION void token(const TeamMember& team, std::int64_t row, int head, A* p, A* ds, A* r,
                             A* dr) const {
    const Extents& x = call.x;
    const int columns = x.value_dim;
    const T* k_row = call.k + call.key_at(row, head);
    const T* do_row = d_o + call.value_at(row, head);
    const Gates& gates = call.gates;
    error_and_its_gradient(team, row, head, p, ds, r, dr);
    const std::int64_t at = (row * x.value_heads + head) * x.key_dim;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, x.key_dim), [&](int a) {
      const A key = static_cast<A>(k_row[a]);
      const A erase = gates.erase(x, row, head, a);
      const A decay = gates.decay(x, row, head, a);
      const A* p_row = p + std::int64_t{a} * columns;
      A* ds_row = ds + std::int64_t{a} * columns;
      A sum_q = 0, sum_k = 0, sum_erase = 0, sum_g = 0;
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, columns),
          [=](int c, A& s) { s += (p_row[c] + key * r[c]) * static_cast<A>(do_row[c]); }, sum_q);
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, columns), [=](int c, A& s) { s += ds_row[c] * r[c]; }, sum_k);
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, columns), [=](int c, A& s) { s -= p_row[c] * dr[c]; }, sum_erase);
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, columns),
          [=](int c, A& s) {
            const A dp = ds_row[c] - erase * key * dr[c];
            s += dp * p_row[c];
            ds_row[c] = decay * dp;
          },
          sum_g);
      Kokkos::single(Kokkos::PerThread(team), [&]() {
        dq[at + a] = static_cast<T>(call.scale * sum_q);
        dk[at + a] = static_cast<T>(sum_k + erase * sum_erase);
        channels.db[at + a] = static_cast<T>(key * sum_erase);
        channels.dg[at + a] = sum_g;
      });
    });
    team.team_barrier();
  }

  /// r of the token, ds += scale q d_o^T, dr = ds^T k, and with it the gradients of v and of the write gate.
  KOKKOS_FUNCTION void error_and_its_gradient(const TeamMember& team, std::int64_t row, int head, const A* p,
                                              A* ds, A* r, A* dr) const {
    const Extents& x = call.x;
    const int columns = x.value_dim;
    const std::int64_t value_at = call.value_at(row, head);
    const T* k_row = call.k + call.key_at(row, head);
    const T* q_row = call.q + call.key_at(row, head);
    const T* v_row = call.v + value_at;
    const T* do_row = d_o + value_at;
    const Gates& gates = call.gates;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) {
      r[c] = gates.write(x, row, head, c) * static_cast<A>(v_row[c]);
      dr[c] = A(0);
    });
    for (int a = 0; a < x.key_dim; ++a) {
      const A key = static_cast<A>(k_row[a]);
      const A erase = gates.erase(x, row, head, a) * key;
      const A query = call.scale * static_cast<A>(q_row[a]);
      const A* p_row = p + std::int64_t{a} * columns;
      A* ds_row = ds + std::int64_t{a} * columns;
      team.team_barrier();
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [=](int c) {
        r[c] -= p_row[c] * erase;
        ds_row[c] += query * static_cast<A>(do_row[c]);
        dr[c] += ds_row[c] * key;
      });
    }
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) {
      dv[value_at + c] = static_cast<T>(gates.write(x, row, head, c) * dr[c]);
      channels.dw[value_at + c] = static_cast<T>(static_cast<A>(v_row[c]) * dr[c]);
    });
    team.team_barrier();
  }
};

/// dg and dbeta of GDN are the sums over the channels.
template <class T>
struct SumGdnGates {
  using A = Accumulate<T>;
  ChannelGradients<T> channels;
  int key_dim, value_dim;
  A *dg, *dbeta;  // [rows, HV]
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    A g = 0, beta = 0;
    for (int a = 0; a < key_dim; ++a) {
      g += channels.dg[i * key_dim + a];
      beta += static_cast<A>(channels.db[i * key_dim + a]);
    }
    for (int c = 0; c < value_dim; ++c) beta += static_cast<A>(channels.dw[i * value_dim + c]);
    dg[i] = g;
    dbeta[i] = beta;
  }
};

template <class T, class Inputs>
Tensor<Accumulate<T>> run(Runtime& runtime, const Extents& x, const Inputs& inputs, double scale,
                          Backward<T, decltype(gates_of(inputs))> kernel,
                          const Tensor<Accumulate<T>>& d_final_state) {
  using A = Accumulate<T>;
  const ExecutionSpace& exec = runtime.compute();
  const Shape states{x.sequences, x.value_heads, x.key_dim, x.value_dim};
  const std::int64_t items = x.sequences * x.value_heads;
  auto checkpoints = runtime.allocate<A>(
      "recurrence checkpoints", {x.block_slots(checkpoint_tokens), x.value_heads, x.key_dim, x.value_dim});
  kernel.call = make_call<T>(x, inputs, scale);
  {
    auto state = runtime.allocate_zero<A>("recurrence state", states);
    if (inputs.initial_state.defined()) copy(exec, state, inputs.initial_state);
    enqueue_kernel(
        "deltaport: recurrence reference states", head_policy(exec, items, scratch_bytes<A>(x, 1)),
        Forward<T, decltype(kernel.call.gates)>{kernel.call, state.data(), nullptr, checkpoints.data()});
  }
  auto d_state = runtime.allocate_zero<A>("recurrence d_state", states);
  if (d_final_state.defined()) copy(exec, d_state, d_final_state);
  // The states of a block are large: run as many items at once as fit a fixed budget.
  const std::int64_t per_item = checkpoint_tokens * x.state_size();
  const std::int64_t budget = (std::int64_t{256} << 20) / static_cast<std::int64_t>(sizeof(A));
  const std::int64_t at_once = std::clamp<std::int64_t>(budget / per_item, 1, items);
  auto block_states = runtime.allocate<A>("recurrence block states", {at_once, per_item});
  kernel.checkpoints = checkpoints.data();
  kernel.block_states = block_states.data();
  kernel.d_state = d_state.data();
  for (kernel.first = 0; kernel.first < items; kernel.first += at_once)
    enqueue_kernel("deltaport: recurrence reference backward",
                   head_policy(exec, std::min(at_once, items - kernel.first), scratch_bytes<A>(x, 2)),
                   kernel);
  return d_state;
}

}  // namespace

template <class T>
GdnGradients<T> backward(Runtime& runtime, const Extents& x, const GdnSaved<T>& saved, const Tensor<T>& d_o,
                         const Tensor<Accumulate<T>>& d_final_state) {
  using A = Accumulate<T>;
  const ExecutionSpace& exec = runtime.compute();
  GroupGradient<T> dq(runtime, "recurrence dq", x, x.key_heads, x.key_dim);
  GroupGradient<T> dk(runtime, "recurrence dk", x, x.key_heads, x.key_dim);
  GdnGradients<T> out;
  out.dv = runtime.allocate<T>("recurrence dv", saved.inputs.v.shape());
  out.dg = runtime.allocate<A>("recurrence dg", saved.inputs.g.shape());
  out.dbeta = runtime.allocate<A>("recurrence dbeta", saved.inputs.g.shape());
  auto dg = runtime.allocate<A>("recurrence dg", {x.rows(), x.value_heads, x.key_dim});
  auto db = runtime.allocate<T>("recurrence db", {x.rows(), x.value_heads, x.key_dim});
  auto dw = runtime.allocate<T>("recurrence dw", {x.rows(), x.value_heads, x.value_dim});
  Backward<T, GdnGates<T>> kernel{};
  kernel.d_o = d_o.data();
  kernel.dq = dq.per_head.data();
  kernel.dk = dk.per_head.data();
  kernel.dv = out.dv.data();
  kernel.channels = {dg.data(), db.data(), dw.data()};
  auto d_state = run<T>(runtime, x, saved.inputs, saved.options.scale, kernel, d_final_state);
  for_each_index(exec, "deltaport: gdn gate sums", x.rows() * x.value_heads,
                 SumGdnGates<T>{kernel.channels, x.key_dim, x.value_dim, out.dg.data(), out.dbeta.data()});
  out.dq = dq.finish(exec, x);
  out.dk = dk.finish(exec, x);
  zero_uncovered_rows(exec, x, out.dv);
  zero_uncovered_rows(exec, x, out.dg);
  zero_uncovered_rows(exec, x, out.dbeta);
  if (saved.inputs.initial_state.defined()) out.dinitial_state = d_state;
  return out;
}

template <class T>
Gdn2Gradients<T> backward(Runtime& runtime, const Extents& x, const Gdn2Saved<T>& saved, const Tensor<T>& d_o,
                          const Tensor<Accumulate<T>>& d_final_state) {
  using A = Accumulate<T>;
  const ExecutionSpace& exec = runtime.compute();
  GroupGradient<T> dq(runtime, "recurrence dq", x, x.key_heads, x.key_dim);
  GroupGradient<T> dk(runtime, "recurrence dk", x, x.key_heads, x.key_dim);
  GroupGradient<A> dg(runtime, "recurrence dg", x, x.gate_heads, x.key_dim);
  GroupGradient<T> db(runtime, "recurrence db", x, x.gate_heads, x.key_dim);
  Gdn2Gradients<T> out;
  out.dv = runtime.allocate<T>("recurrence dv", saved.inputs.v.shape());
  out.dw = runtime.allocate<T>("recurrence dw", saved.inputs.v.shape());
  Backward<T, Gdn2Gates<T>> kernel{};
  kernel.d_o = d_o.data();
  kernel.dq = dq.per_head.data();
  kernel.dk = dk.per_head.data();
  kernel.dv = out.dv.data();
  kernel.channels = {dg.per_head.data(), db.per_head.data(), out.dw.data()};
  auto d_state = run<T>(runtime, x, saved.inputs, saved.options.scale, kernel, d_final_state);
  out.dq = dq.finish(exec, x);
  out.dk = dk.finish(exec, x);
  out.dg = dg.finish(exec, x);
  out.db = db.finish(exec, x);
  zero_uncovered_rows(exec, x, out.dv);
  zero_uncovered_rows(exec, x, out.dw);
  if (saved.inputs.initial_state.defined()) out.dinitial_state = d_state;
  return out;
}

#define DELTAPORT_INSTANTIATE(T)                                                                         \
  template GdnGradients<T> backward<T>(Runtime&, const Extents&, const GdnSaved<T>&, const Tensor<T>&,   \
                                       const Tensor<Accumulate<T>>&);                                    \
  template Gdn2Gradients<T> backward<T>(Runtime&, const Extents&, const Gdn2Saved<T>&, const Tensor<T>&, \
                                        const Tensor<Accumulate<T>>&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence::reference
