// SPDX-License-Identifier: Apache-2.0
#include "conformance/oracle.hpp"
#include "conformance/oracle_activations.hpp"

#include <cmath>
#include <complex>

namespace deltaport::oracle {
namespace {

using Index = std::int64_t;

template <class R>
R& at(std::vector<R>& x, Index i) {
  return x[static_cast<std::size_t>(i)];
}
template <class R>
const R& at(const std::vector<R>& x, Index i) {
  return x[static_cast<std::size_t>(i)];
}

// Offsets of one token's rows for one value head.
struct Place {
  Index key, value, scalar, gate;
};
template <class R>
Place place(const Problem<R>& p, Index row, int head) {
  const int group = p.value_heads / p.key_heads;
  const int gate_head = p.gate_heads == p.value_heads ? head : head / group;
  return {(row * p.key_heads + head / group) * p.key_dim, (row * p.value_heads + head) * p.value_dim,
          row * p.value_heads + head, (row * p.gate_heads + gate_head) * p.key_dim};
}

// The state after one token, from the state before it.
template <class R>
void advance(const Problem<R>& p, const Place& x, std::vector<R>& s) {
  const int K = p.key_dim, V = p.value_dim;
  if (p.rule == Rule::gdn)
    for (R& value : s) value *= std::exp(at(p.g, x.scalar));
  else
    for (int a = 0; a < K; ++a)
      for (int c = 0; c < V; ++c) at(s, a * V + c) *= std::exp(at(p.g, x.gate + a));
  for (int c = 0; c < V; ++c) {
    R recalled = 0, error;
    if (p.rule == Rule::gdn) {
      for (int a = 0; a < K; ++a) recalled += at(s, a * V + c) * at(p.k, x.key + a);
      error = at(p.beta, x.scalar) * (at(p.v, x.value + c) - recalled);
    } else {
      for (int a = 0; a < K; ++a) recalled += at(s, a * V + c) * at(p.b, x.gate + a) * at(p.k, x.key + a);
      error = at(p.w, x.value + c) * at(p.v, x.value + c) - recalled;
    }
    for (int a = 0; a < K; ++a) at(s, a * V + c) += at(p.k, x.key + a) * error;
  }
}

template <class R>
std::vector<R> start(const Problem<R>& p, Index n, int head) {
  const Index size = Index{p.key_dim} * p.value_dim;
  std::vector<R> s(static_cast<std::size_t>(size));
  if (!p.initial_state.empty())
    for (Index i = 0; i < size; ++i) at(s, i) = at(p.initial_state, (n * p.value_heads + head) * size + i);
  return s;
}

// Gradients of one token. `before` is the state before it; ds, the gradient of the state after it, becomes
// that before.
void retreat(const Problem<double>& p, const Place& x, const std::vector<double>& before,
             std::vector<double>& ds, Values& out) {
  const int K = p.key_dim, V = p.value_dim;
  const bool gdn = p.rule == Rule::gdn;
  const double beta = gdn ? at(p.beta, x.scalar) : 0.0;
  auto &dq = out["dq"], &dk = out["dk"], &dv = out["dv"], &dg = out["dg"];
  auto &d_erase_gate = out[gdn ? "dbeta" : "db"], &d_write_gate = out[gdn ? "dbeta" : "dw"];
  std::vector<double> decay(static_cast<std::size_t>(K)), decayed = decay, erase = decay;
  for (int c = 0; c < V; ++c) {
    const double d_out = at(p.d_o, x.value + c), v = at(p.v, x.value + c);
    const double write = gdn ? beta : at(p.w, x.value + c);
    double recalled = 0;
    for (int a = 0; a < K; ++a) {
      at(decay, a) = std::exp(gdn ? at(p.g, x.scalar) : at(p.g, x.gate + a));
      at(decayed, a) = at(decay, a) * at(before, a * V + c);
      at(erase, a) = (gdn ? beta : at(p.b, x.gate + a)) * at(p.k, x.key + a);
      recalled += at(decayed, a) * at(erase, a);
    }
    const double error = write * v - recalled;
    double d_error = 0;
    for (int a = 0; a < K; ++a) {
      const double k = at(p.k, x.key + a);
      double& d = at(ds, a * V + c);
      at(dq, x.key + a) += p.scale * d_out * (at(decayed, a) + k * error);
      d += p.scale * at(p.q, x.key + a) * d_out;
      at(dk, x.key + a) += d * error;
      d_error += d * k;
    }
    at(dv, x.value + c) += d_error * write;
    at(d_write_gate, gdn ? x.scalar : x.value + c) += d_error * v;
    for (int a = 0; a < K; ++a) {
      double& d = at(ds, a * V + c);
      const double d_erase = -d_error * at(decayed, a);
      at(dk, x.key + a) += d_erase * (gdn ? beta : at(p.b, x.gate + a));
      at(d_erase_gate, gdn ? x.scalar : x.gate + a) += d_erase * at(p.k, x.key + a);
      d -= d_error * at(erase, a);
      at(dg, gdn ? x.scalar : x.gate + a) += d * at(decayed, a);
      d *= at(decay, a);
    }
  }
}

void solve_head(const Problem<double>& p, Index n, int head, Values& out) {
  std::vector<std::vector<double>> states{start(p, n, head)};
  for (Index row = p.begin(n); row < p.end(n); ++row) {
    states.push_back(states.back());
    advance(p, place(p, row, head), states.back());
  }
  const Index size = Index{p.key_dim} * p.value_dim, offset = (n * p.value_heads + head) * size;
  std::vector<double> ds(static_cast<std::size_t>(size));
  if (!p.d_final_state.empty())
    for (Index i = 0; i < size; ++i) at(ds, i) = at(p.d_final_state, offset + i);
  for (Index row = p.end(n) - 1; row >= p.begin(n); --row)
    retreat(p, place(p, row, head), states[static_cast<std::size_t>(row - p.begin(n))], ds, out);
  for (Index i = 0; i < size; ++i) at(out["dinitial_state"], offset + i) = at(ds, i);
}

// The core rule, on activated inputs.
template <class R>
Forward<R> run(const Problem<R>& p) {
  const Index size = Index{p.key_dim} * p.value_dim;
  Forward<R> out;
  out.o.resize(p.v.size());
  out.final_state.resize(static_cast<std::size_t>(p.sequences() * p.value_heads * size));
  for (Index n = 0; n < p.sequences(); ++n)
    for (int head = 0; head < p.value_heads; ++head) {
      std::vector<R> s = start(p, n, head);
      for (Index row = p.begin(n); row < p.end(n); ++row) {
        const Place x = place(p, row, head);
        advance(p, x, s);
        for (int c = 0; c < p.value_dim; ++c)
          for (int a = 0; a < p.key_dim; ++a)
            at(out.o, x.value + c) += p.scale * at(p.q, x.key + a) * at(s, Index{a} * p.value_dim + c);
      }
      for (Index i = 0; i < size; ++i) at(out.final_state, (n * p.value_heads + head) * size + i) = at(s, i);
    }
  return out;
}

Values adjoint(const Problem<double>& p) {
  Forward<double> f = run(p);
  Values out;
  out["dq"].resize(p.q.size());
  out["dk"].resize(p.k.size());
  out["dv"].resize(p.v.size());
  out["dg"].resize(p.g.size());
  if (p.rule == Rule::gdn) {
    out["dbeta"].resize(p.beta.size());
  } else {
    out["db"].resize(p.b.size());
    out["dw"].resize(p.w.size());
  }
  out["dinitial_state"].resize(f.final_state.size());
  out["o"] = std::move(f.o);
  out["final_state"] = std::move(f.final_state);
  for (Index n = 0; n < p.sequences(); ++n)
    for (int head = 0; head < p.value_heads; ++head) solve_head(p, n, head, out);
  if (p.initial_state.empty()) out.erase("dinitial_state");
  return out;
}

}  // namespace

template <class R>
Forward<R> forward(const Problem<R>& p) {
  return run(activated(p));
}
template Forward<double> forward(const Problem<double>&);
template Forward<std::complex<double>> forward(const Problem<std::complex<double>>&);

Values solve(const Problem<double>& p) {
  Values out = adjoint(activated(p));
  chain_activations(p, out);
  return out;
}

}  // namespace deltaport::oracle
