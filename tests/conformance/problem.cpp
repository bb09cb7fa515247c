// SPDX-License-Identifier: Apache-2.0
// Problems and comparisons, apart from the library's calls.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "conformance/harness.hpp"

namespace deltaport::conformance {
namespace {

template <class T>
void round_all(std::vector<double>& x) {
  for (double& value : x)
    value = static_cast<Accumulate<T>>(static_cast<T>(static_cast<Accumulate<T>>(value)));
}

// Elements per token of a token-wise field; 0 for states.
std::int64_t width_of(const Problem<double>& p, const std::string& name) {
  const std::int64_t rows = p.batch * p.tokens;
  if (name == "final_state" || name == "dinitial_state" || name == "initial_state" || name == "d_final_state")
    return 0;
  if (name == "q" || name == "k" || name == "dq" || name == "dk") return p.key_heads * p.key_dim;
  if (name == "g" || name == "dg" || name == "d_raw_gate")
    return static_cast<std::int64_t>(p.g.size()) / rows;
  if (name == "b" || name == "db") return static_cast<std::int64_t>(p.b.size()) / rows;
  if (name == "beta" || name == "dbeta" || name == "d_raw_beta") return p.value_heads;
  return p.value_heads * p.value_dim;
}

}  // namespace

template <class T>
Problem<double> rounded(Problem<double> p) {
  for (auto* x : {&p.q, &p.k, &p.v, &p.b, &p.w, &p.d_o}) round_all<T>(*x);
  if (p.activations.gate != Gate::log_decay) round_all<T>(p.g);
  if (p.activations.beta != Beta::plain) round_all<T>(p.beta);
  return p;
}

Problem<double> random_problem(Rule rule, const Sizes& s, Gates gates, std::uint64_t seed,
                               const Activations& activations) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto fill = [&](std::int64_t n, auto draw) {
    std::vector<double> x(static_cast<std::size_t>(n));
    for (double& value : x) value = static_cast<float>(draw());
    return x;
  };
  const auto normalise = [](std::vector<double>& x, int width) {
    for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(width)) {
      double sum = 1e-6;
      for (int a = 0; a < width; ++a)
        sum += x[i + static_cast<std::size_t>(a)] * x[i + static_cast<std::size_t>(a)];
      for (int a = 0; a < width; ++a)
        x[i + static_cast<std::size_t>(a)] =
            static_cast<float>(x[i + static_cast<std::size_t>(a)] / std::sqrt(sum));
    }
  };
  Problem<double> p;
  p.rule = rule;
  p.activations = activations;
  p.batch = s.batch;
  p.tokens = s.tokens;
  p.key_heads = s.key_heads;
  p.value_heads = s.value_heads;
  p.gate_heads = s.gate_heads == 0 ? s.value_heads : s.gate_heads;
  p.key_dim = s.key_dim;
  p.value_dim = s.value_dim;
  p.scale = 1.0 / std::sqrt(static_cast<double>(s.key_dim));
  p.cu_seqlens = s.cu_seqlens;
  const std::int64_t rows = s.batch * s.tokens;
  const auto gaussian = [&] { return normal(engine); };
  const auto positive = [&] { return uniform(engine); };
  const auto erase = [&] { return activations.beta == Beta::plain ? positive() : 1.5 * gaussian(); };
  const auto write = [&] { return activations.write_sigmoid ? gaussian() : positive(); };
  const bool activated = activations.gate != Gate::log_decay;
  const auto decay = [&] { return activated ? gaussian() : 2.0 * gates.mean * uniform(engine); };
  p.q = fill(rows * s.key_heads * s.key_dim, gaussian);
  p.k = fill(rows * s.key_heads * s.key_dim, gaussian);
  if (!activations.l2_norm) {
    normalise(p.q, s.key_dim);
    normalise(p.k, s.key_dim);
  }
  p.v = fill(rows * s.value_heads * s.value_dim, gaussian);
  if (rule == Rule::gdn) {
    p.g = fill(rows * s.value_heads, decay);
    p.beta = fill(rows * s.value_heads, erase);
  } else {
    p.g = fill(rows * p.gate_heads * s.key_dim, decay);
    p.b = fill(rows * p.gate_heads * s.key_dim, erase);
    p.w = fill(rows * s.value_heads * s.value_dim, write);
  }
  if (activated) {
    const double log = activations.gate == Gate::softplus ? std::log(-gates.mean) : 0.0;
    const int heads = rule == Rule::gdn ? s.value_heads : p.gate_heads;
    p.A_log = fill(heads, [&] { return log + 0.3 * gaussian(); });
    p.dt_bias = fill(heads * (rule == Rule::gdn ? 1 : s.key_dim), [&] { return 0.5 * gaussian(); });
  }
  p.d_o = fill(rows * s.value_heads * s.value_dim, gaussian);
  if (s.with_states) {
    const std::int64_t state = p.sequences() * s.value_heads * s.key_dim * s.value_dim;
    p.initial_state = fill(state, gaussian);
    p.d_final_state = fill(state, gaussian);
  }
  return p;
}

std::vector<double> slice(const Problem<double>& p, const std::string& name,
                          const std::vector<double>& values, std::int64_t n) {
  if (values.empty()) return {};
  const std::int64_t width = width_of(p, name);
  const std::int64_t state = std::int64_t{p.value_heads} * p.key_dim * p.value_dim;
  const std::int64_t begin = width == 0 ? n * state : p.begin(n) * width;
  const std::int64_t end = width == 0 ? begin + state : p.end(n) * width;
  return {values.begin() + begin, values.begin() + end};
}

Problem<double> only_sequence(const Problem<double>& p, std::int64_t n) {
  Problem<double> one = p;
  one.batch = 1;
  one.tokens = p.end(n) - p.begin(n);
  one.cu_seqlens.clear();
  one.q = slice(p, "q", p.q, n);
  one.k = slice(p, "k", p.k, n);
  one.v = slice(p, "v", p.v, n);
  one.g = slice(p, "g", p.g, n);
  one.beta = slice(p, "beta", p.beta, n);
  one.b = slice(p, "b", p.b, n);
  one.w = slice(p, "w", p.w, n);
  one.initial_state = slice(p, "initial_state", p.initial_state, n);
  one.d_o = slice(p, "d_o", p.d_o, n);
  one.d_final_state = slice(p, "d_final_state", p.d_final_state, n);
  return one;
}

Problem<double> only_token(const Problem<double>& p, std::int64_t t) {
  Problem<double> one = p;
  one.tokens = 1;
  one.initial_state.clear();
  const auto pick = [&](const char* name, const std::vector<double>& x) {
    const std::int64_t width = width_of(p, name);
    std::vector<double> rows;
    for (std::int64_t n = 0; n < p.batch && !x.empty(); ++n)
      rows.insert(rows.end(), x.begin() + (n * p.tokens + t) * width,
                  x.begin() + (n * p.tokens + t + 1) * width);
    return rows;
  };
  one.q = pick("q", p.q);
  one.k = pick("k", p.k);
  one.v = pick("v", p.v);
  one.g = pick("g", p.g);
  one.beta = pick("beta", p.beta);
  one.b = pick("b", p.b);
  one.w = pick("w", p.w);
  return one;
}

const Values& solution(const Problem<double>& p) {
  static std::map<std::uint64_t, Values> kept;
  std::uint64_t hash = 0xcbf29ce484222325ull;
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;  // doubles differ in their upper bits, which a product would only move up
  };
  const auto mix_all = [&](const auto& values) {
    mix(values.size());
    for (double value : values) mix(std::bit_cast<std::uint64_t>(value));
  };
  const Activations& a = p.activations;
  for (auto value : {static_cast<std::int64_t>(p.rule), p.batch, p.tokens, std::int64_t{p.key_heads},
                     std::int64_t{p.value_heads}, std::int64_t{p.gate_heads}, std::int64_t{p.key_dim},
                     static_cast<std::int64_t>(a.l2_norm), static_cast<std::int64_t>(a.gate),
                     static_cast<std::int64_t>(a.beta), static_cast<std::int64_t>(a.write_sigmoid)})
    mix(static_cast<std::uint64_t>(value));
  mix_all(std::vector<double>{p.scale, a.lower_bound});
  mix_all(p.cu_seqlens);
  for (const auto* values : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.b, &p.w, &p.A_log, &p.dt_bias,
                             &p.initial_state, &p.d_o, &p.d_final_state})
    mix_all(*values);
  const auto found = kept.find(hash);
  return found != kept.end() ? found->second : kept.emplace(hash, oracle::solve(p)).first->second;
}

double rms_difference(const std::vector<double>& x, const std::vector<double>& expected) {
  if (x.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - expected[i]) * (x[i] - expected[i]);
  if (!std::isfinite(sum)) return std::numeric_limits<double>::infinity();
  return x.empty() ? 0 : std::sqrt(sum / static_cast<double>(x.size()));
}

double relative_error(const std::vector<double>& x, const std::vector<double>& expected) {
  const double difference = rms_difference(x, expected);
  const double norm = rms_difference(std::vector<double>(expected.size()), expected);
  return difference == 0 ? 0 : difference / (norm == 0 ? 1e-300 : norm);
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

template Problem<double> rounded<bfloat16>(Problem<double>);
template Problem<double> rounded<float16>(Problem<double>);
template Problem<double> rounded<float>(Problem<double>);
template Problem<double> rounded<double>(Problem<double>);

}  // namespace deltaport::conformance
