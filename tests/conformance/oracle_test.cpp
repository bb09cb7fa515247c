// SPDX-License-Identifier: Apache-2.0
// The oracle's adjoint against the complex step of its own forward, which is exact to rounding.
#include <gtest/gtest.h>

#include <complex>

#include "conformance/harness.hpp"

namespace {

using namespace deltaport::conformance;
using Complex = std::complex<double>;

Problem<Complex> to_complex(const Problem<double>& p) {
  Problem<Complex> z;
  z.rule = p.rule;
  z.batch = p.batch;
  z.tokens = p.tokens;
  z.key_heads = p.key_heads;
  z.value_heads = p.value_heads;
  z.gate_heads = p.gate_heads;
  z.key_dim = p.key_dim;
  z.value_dim = p.value_dim;
  z.scale = p.scale;
  z.cu_seqlens = p.cu_seqlens;
  const auto widen = [](const std::vector<double>& x) { return std::vector<Complex>(x.begin(), x.end()); };
  z.q = widen(p.q);
  z.k = widen(p.k);
  z.v = widen(p.v);
  z.g = widen(p.g);
  z.beta = widen(p.beta);
  z.b = widen(p.b);
  z.w = widen(p.w);
  z.initial_state = widen(p.initial_state);
  z.activations = p.activations;
  z.A_log = widen(p.A_log);
  z.dt_bias = widen(p.dt_bias);
  return z;
}

double slope(const Problem<double>& p, const Problem<Complex>& z, double epsilon) {
  const auto f = deltaport::oracle::forward(z);
  double sum = 0;
  for (std::size_t i = 0; i < f.o.size(); ++i) sum += f.o[i].imag() * p.d_o[i];
  for (std::size_t i = 0; i < f.final_state.size(); ++i) sum += f.final_state[i].imag() * p.d_final_state[i];
  return sum / epsilon;
}

void check(const Problem<double>& p) {
  const double epsilon = 1e-30;
  Values expected = deltaport::oracle::solve(p);
  Problem<Complex> z = to_complex(p);
  const bool raw_gate = p.activations.gate != Gate::log_decay, raw_beta = p.activations.beta != Beta::plain;
  const std::vector<std::pair<const char*, std::vector<Complex>*>> inputs{
      {"dq", &z.q},
      {"dk", &z.k},
      {"dv", &z.v},
      {raw_gate ? "d_raw_gate" : "dg", &z.g},
      {"db", &z.b},
      {"dw", &z.w},
      {raw_beta ? "d_raw_beta" : "dbeta", &z.beta},
      {"dinitial_state", &z.initial_state},
      {"dA_log", &z.A_log},
      {"ddt_bias", &z.dt_bias}};
  for (const auto& [name, x] : inputs) {
    std::vector<double> numeric;
    for (Complex& value : *x) {
      value += Complex(0, epsilon);
      numeric.push_back(slope(p, z, epsilon));
      value = value.real();
    }
    EXPECT_LT(relative_error(expected[name], numeric), 1e-13) << name;
  }
}

TEST(Oracle, AdjointIsTheComplexStep) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    check(random_problem(rule, {.tokens = 5, .key_dim = 3, .value_dim = 4}, {-0.7}, 11));
    check(random_problem(
        rule, {.batch = 2, .tokens = 3, .key_heads = 2, .value_heads = 4, .key_dim = 2, .value_dim = 3},
        {-0.2}, 12));
    check(random_problem(rule,
                         {.tokens = 7,
                          .value_heads = 2,
                          .key_dim = 2,
                          .value_dim = 2,
                          .gate_heads = 1,
                          .cu_seqlens = {0, 1, 1, 5}},
                         {-0.2}, 13));
  }
}

TEST(Oracle, ActivationsAreTheComplexStep) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (Gate gate : {Gate::softplus, Gate::lower_bounded})
      for (Beta beta : {Beta::sigmoid, Beta::doubled_sigmoid}) {
        const Sizes sizes{
            .batch = 2, .tokens = 4, .value_heads = 2, .key_dim = 3, .value_dim = 2, .gate_heads = 1};
        check(random_problem(
            rule, sizes, {-0.4}, 14,
            {.l2_norm = true, .gate = gate, .beta = beta, .write_sigmoid = rule == Rule::gdn2}));
      }
}

TEST(Oracle, GdnIsGdn2WithEqualGates) {
  const auto gdn =
      random_problem(Rule::gdn, {.tokens = 6, .value_heads = 2, .key_dim = 3, .value_dim = 4}, {-0.5}, 3);
  auto gdn2 = gdn;
  gdn2.rule = Rule::gdn2;
  gdn2.g.clear();
  for (std::size_t i = 0; i < gdn.g.size(); ++i) {
    gdn2.g.insert(gdn2.g.end(), 3, gdn.g[i]);
    gdn2.b.insert(gdn2.b.end(), 3, gdn.beta[i]);
    gdn2.w.insert(gdn2.w.end(), 4, gdn.beta[i]);
  }
  EXPECT_LT(relative_error(deltaport::oracle::forward(gdn2).o, deltaport::oracle::forward(gdn).o), 1e-14);
}

}  // namespace
