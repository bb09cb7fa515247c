// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives, straight from the formulas. Rows that no sequence covers are left alone.
#include "conformance/oracle_activations.hpp"

#include <cmath>
#include <complex>

namespace deltaport::oracle {
namespace {

using Complex = std::complex<double>;

double softplus(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
Complex softplus(Complex x) {
  return std::log(1.0 + std::exp(x));
}
double logistic(double x) {
  return x > 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
Complex logistic(Complex x) {
  return 1.0 / (1.0 + std::exp(-x));
}

template <class R>
void normalise(std::vector<R>& x, int width) {
  for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(width)) {
    R sum = 1e-6;
    for (std::size_t a = i; a < i + static_cast<std::size_t>(width); ++a) sum += x[a] * x[a];
    for (std::size_t a = i; a < i + static_cast<std::size_t>(width); ++a) x[a] /= std::sqrt(sum);
  }
}

/// dx = J^T dy with J = d(x / n) / dx = I / n - x x^T / n^3
void normalise_adjoint(const std::vector<double>& x, int width, std::vector<double>& d) {
  for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(width)) {
    double square = 1e-6, along = 0;
    for (std::size_t a = i; a < i + static_cast<std::size_t>(width); ++a) {
      square += x[a] * x[a];
      along += x[a] * d[a];
    }
    const double n = std::sqrt(square);
    for (std::size_t a = i; a < i + static_cast<std::size_t>(width); ++a)
      d[a] = d[a] / n - x[a] * along / (n * square);
  }
}

double factor_of(Beta beta) {
  return beta == Beta::doubled_sigmoid ? 2.0 : 1.0;
}

template <class R>
void squash(std::vector<R>& x, double factor) {
  for (R& value : x) value = factor * logistic(value);
}
void squash_adjoint(const std::vector<double>& x, double factor, std::vector<double>& d) {
  for (std::size_t i = 0; i < x.size(); ++i) d[i] *= factor * logistic(x[i]) * logistic(-x[i]);
}

// Channels of one head of g, and of all.
template <class R>
std::size_t channels(const Problem<R>& p) {
  return p.rule == Rule::gdn ? 1 : static_cast<std::size_t>(p.key_dim);
}
template <class R>
std::size_t width(const Problem<R>& p) {
  return channels(p) * static_cast<std::size_t>(p.rule == Rule::gdn ? p.value_heads : p.gate_heads);
}
template <class R>
R shifted(const Problem<R>& p, std::size_t i) {
  return p.dt_bias.empty() ? p.g[i] : p.g[i] + p.dt_bias[i % width(p)];
}
template <class R>
R rate(const Problem<R>& p, std::size_t i) {
  return p.A_log.empty() ? R(1) : std::exp(p.A_log[i % width(p) / channels(p)]);
}

bool covered(const Problem<double>& p, std::size_t row) {
  const auto at = static_cast<std::int64_t>(row);
  return p.cu_seqlens.empty() || (at >= p.cu_seqlens.front() && at < p.cu_seqlens.back());
}

void chain_gate(const Problem<double>& p, Values& values) {
  auto& dg = values["dg"];
  std::vector<double> by_log(p.A_log.size()), by_bias(p.dt_bias.size());
  for (std::size_t i = 0; i < dg.size(); ++i) {
    if (!covered(p, i / width(p))) continue;
    const double x = shifted(p, i), e = rate(p, i);
    double slope, slope_of_log;
    if (p.activations.gate == Gate::softplus) {
      slope = -e * logistic(x);
      slope_of_log = -e * softplus(x);
    } else {
      const double bell = p.activations.lower_bound * logistic(e * x) * logistic(-e * x);
      slope = bell * e;
      slope_of_log = bell == 0 ? 0 : bell * e * x;
    }
    if (!by_log.empty()) by_log[i % width(p) / channels(p)] += dg[i] * slope_of_log;
    dg[i] *= slope;
    if (!by_bias.empty()) by_bias[i % width(p)] += dg[i];
  }
  values["d_raw_gate"] = std::move(dg);
  values.erase("dg");
  if (!by_log.empty()) values["dA_log"] = by_log;
  if (!by_bias.empty()) values["ddt_bias"] = by_bias;
}

}  // namespace

template <class R>
Problem<R> activated(const Problem<R>& p) {
  Problem<R> out = p;
  const Activations& a = p.activations;
  if (a.l2_norm) {
    normalise(out.q, p.key_dim);
    normalise(out.k, p.key_dim);
  }
  for (std::size_t i = 0; i < p.g.size() && a.gate != Gate::log_decay; ++i)
    out.g[i] = a.gate == Gate::softplus ? -rate(p, i) * softplus(shifted(p, i))
                                        : a.lower_bound * logistic(rate(p, i) * shifted(p, i));
  if (a.beta != Beta::plain) squash(p.rule == Rule::gdn ? out.beta : out.b, factor_of(a.beta));
  if (a.write_sigmoid) squash(out.w, 1.0);
  return out;
}
template Problem<double> activated(const Problem<double>&);
template Problem<Complex> activated(const Problem<Complex>&);

void chain_activations(const Problem<double>& p, Values& values) {
  const Activations& a = p.activations;
  if (a.l2_norm) {
    normalise_adjoint(p.q, p.key_dim, values["dq"]);
    normalise_adjoint(p.k, p.key_dim, values["dk"]);
  }
  if (a.gate != Gate::log_decay) chain_gate(p, values);
  if (a.beta != Beta::plain && p.rule == Rule::gdn) {
    squash_adjoint(p.beta, factor_of(a.beta), values["dbeta"]);
    values["d_raw_beta"] = std::move(values["dbeta"]);
    values.erase("dbeta");
  }
  if (a.beta != Beta::plain && p.rule == Rule::gdn2) squash_adjoint(p.b, factor_of(a.beta), values["db"]);
  if (a.write_sigmoid) squash_adjoint(p.w, 1.0, values["dw"]);
}

}  // namespace deltaport::oracle
