// SPDX-License-Identifier: Apache-2.0
#include "conformance/harness.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace deltaport::conformance {
namespace {

using recurrence::Gdn2Inputs;
using recurrence::GdnInputs;

template <class X>
Tensor<X> upload(Runtime& runtime, const Shape& shape, const std::vector<double>& values) {
  if (values.empty()) return {};
  return from_vector<X>(runtime.compute(), runtime.arena(), "test input", shape,
                        std::vector<X>(values.begin(), values.end()));
}

template <class X>
void store(Runtime& runtime, Values& out, const char* name, const Tensor<X>& x) {
  if (!x.defined()) return;
  const std::vector<X> host = to_vector(runtime.compute(), x);
  out[name].assign(host.begin(), host.end());
}

template <class T, class Inputs>
void upload_shared(Runtime& runtime, const Problem<double>& p, Inputs& x) {
  x.q = upload<T>(runtime, {p.batch, p.tokens, p.key_heads, p.key_dim}, p.q);
  x.k = upload<T>(runtime, {p.batch, p.tokens, p.key_heads, p.key_dim}, p.k);
  x.v = upload<T>(runtime, {p.batch, p.tokens, p.value_heads, p.value_dim}, p.v);
  x.initial_state =
      upload<T>(runtime, {p.sequences(), p.value_heads, p.key_dim, p.value_dim}, p.initial_state);
  if (!p.cu_seqlens.empty())
    x.cu_seqlens = from_vector<std::int32_t>(runtime.compute(), runtime.arena(), "cu_seqlens",
                                             {static_cast<std::int64_t>(p.cu_seqlens.size())}, p.cu_seqlens);
}

template <class T>
struct IncomingGradients {
  Tensor<T> d_o, d_final_state;
  IncomingGradients(Runtime& runtime, const Problem<double>& p)
      : d_o(upload<T>(runtime, {p.batch, p.tokens, p.value_heads, p.value_dim}, p.d_o)),
        d_final_state(
            upload<T>(runtime, {p.sequences(), p.value_heads, p.key_dim, p.value_dim}, p.d_final_state)) {}
};

template <class Gradients>
void store_shared(Runtime& runtime, Values& out, const Gradients& gradients) {
  store(runtime, out, "dq", gradients.dq);
  store(runtime, out, "dk", gradients.dk);
  store(runtime, out, "dv", gradients.dv);
  store(runtime, out, "dg", gradients.dg);
  store(runtime, out, "dinitial_state", gradients.dinitial_state);
}

// Elements per token of a token-wise field; 0 for states.
std::int64_t width_of(const Problem<double>& p, const std::string& name) {
  const std::int64_t rows = p.batch * p.tokens;
  if (name == "final_state" || name == "dinitial_state" || name == "initial_state" || name == "d_final_state")
    return 0;
  if (name == "q" || name == "k" || name == "dq" || name == "dk") return p.key_heads * p.key_dim;
  if (name == "g" || name == "dg") return static_cast<std::int64_t>(p.g.size()) / rows;
  if (name == "b" || name == "db") return static_cast<std::int64_t>(p.b.size()) / rows;
  if (name == "beta" || name == "dbeta") return p.value_heads;
  return p.value_heads * p.value_dim;
}

}  // namespace

Problem<double> random_problem(Rule rule, const Sizes& s, Gates gates, std::uint64_t seed) {
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
  const auto decay = [&] { return 2.0 * gates.mean * uniform(engine); };
  p.q = fill(rows * s.key_heads * s.key_dim, gaussian);
  p.k = fill(rows * s.key_heads * s.key_dim, gaussian);
  normalise(p.q, s.key_dim);
  normalise(p.k, s.key_dim);
  p.v = fill(rows * s.value_heads * s.value_dim, gaussian);
  if (rule == Rule::gdn) {
    p.g = fill(rows * s.value_heads, decay);
    p.beta = fill(rows * s.value_heads, positive);
  } else {
    p.g = fill(rows * p.gate_heads * s.key_dim, decay);
    p.b = fill(rows * p.gate_heads * s.key_dim, positive);
    p.w = fill(rows * s.value_heads * s.value_dim, positive);
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

template <class T>
GdnInputs<T> gdn_inputs(Runtime& runtime, const Problem<double>& p) {
  GdnInputs<T> x;
  upload_shared<T>(runtime, p, x);
  x.g = upload<T>(runtime, {p.batch, p.tokens, p.value_heads}, p.g);
  x.beta = upload<T>(runtime, {p.batch, p.tokens, p.value_heads}, p.beta);
  return x;
}

template <class T>
Gdn2Inputs<T> gdn2_inputs(Runtime& runtime, const Problem<double>& p) {
  Gdn2Inputs<T> x;
  upload_shared<T>(runtime, p, x);
  x.g = upload<T>(runtime, {p.batch, p.tokens, p.gate_heads, p.key_dim}, p.g);
  x.b = upload<T>(runtime, {p.batch, p.tokens, p.gate_heads, p.key_dim}, p.b);
  x.w = upload<T>(runtime, {p.batch, p.tokens, p.value_heads, p.value_dim}, p.w);
  return x;
}

template <class T>
Values run(Runtime& runtime, const Problem<double>& p, const recurrence::Options& options, Pass pass) {
  recurrence::Options resolved = options;
  resolved.scale = p.scale;
  resolved.output_final_state = true;
  resolved.save_for_backward = pass == Pass::forward_and_backward;
  Values out;
  const auto finish = [&](const auto& result, auto backward, auto store_gates) {
    store(runtime, out, "o", result.o);
    store(runtime, out, "final_state", result.final_state);
    if (pass == Pass::forward) return;
    const IncomingGradients<T> incoming(runtime, p);
    const auto gradients = backward(result.saved, incoming);
    store_shared(runtime, out, gradients);
    store_gates(gradients);
  };
  if (p.rule == Rule::gdn)
    finish(
        recurrence::gdn_forward<T>(runtime, gdn_inputs<T>(runtime, p), resolved),
        [&](const auto& saved, const auto& in) {
          return recurrence::gdn_backward<T>(runtime, saved, in.d_o, in.d_final_state);
        },
        [&](const auto& gradients) { store(runtime, out, "dbeta", gradients.dbeta); });
  else
    finish(
        recurrence::gdn2_forward<T>(runtime, gdn2_inputs<T>(runtime, p), resolved),
        [&](const auto& saved, const auto& in) {
          return recurrence::gdn2_backward<T>(runtime, saved, in.d_o, in.d_final_state);
        },
        [&](const auto& gradients) {
          store(runtime, out, "db", gradients.db);
          store(runtime, out, "dw", gradients.dw);
        });
  return out;
}

template <class T>
Values run_steps(Runtime& runtime, const Problem<double>& p) {
  auto state = upload<T>(runtime, {p.batch, p.value_heads, p.key_dim, p.value_dim}, p.initial_state);
  Values out;
  out["o"].resize(p.v.size());
  for (std::int64_t t = 0; t < p.tokens; ++t) {
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
    recurrence::Options options;
    options.scale = p.scale;
    const Tensor<T> o = p.rule == Rule::gdn
                            ? recurrence::gdn_step<T>(runtime, gdn_inputs<T>(runtime, one), state, options)
                            : recurrence::gdn2_step<T>(runtime, gdn2_inputs<T>(runtime, one), state, options);
    const std::vector<T> rows = to_vector(runtime.compute(), o);
    const std::int64_t width = p.value_heads * p.value_dim;
    for (std::int64_t n = 0; n < p.batch; ++n)
      std::copy(rows.begin() + n * width, rows.begin() + (n + 1) * width,
                out["o"].begin() + (n * p.tokens + t) * width);
  }
  store(runtime, out, "final_state", state);
  return out;
}

double relative_error(const std::vector<double>& x, const std::vector<double>& expected) {
  if (x.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - expected[i]) * (x[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  if (difference == 0) return 0;
  return std::sqrt(difference / (norm == 0 ? 1e-300 : norm));
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

#define DELTAPORT_INSTANTIATE(T)                                                              \
  template Values run<T>(Runtime&, const Problem<double>&, const recurrence::Options&, Pass); \
  template Values run_steps<T>(Runtime&, const Problem<double>&);                             \
  template recurrence::GdnInputs<T> gdn_inputs<T>(Runtime&, const Problem<double>&);          \
  template recurrence::Gdn2Inputs<T> gdn2_inputs<T>(Runtime&, const Problem<double>&);
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::conformance
