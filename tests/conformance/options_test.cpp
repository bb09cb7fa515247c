// SPDX-License-Identifier: Apache-2.0
// Norm and activations inside: each alone, all together, at their limits, against the oracle's own formulas.
#include <cmath>
#include <limits>

#include "conformance/implementations.hpp"

namespace {

using namespace deltaport::conformance;

template <class Implementation>
class Options : public Suite<Implementation> {
 protected:
  static void expect_finite(const Values& values) {
    for (const auto& [name, x] : values)
      for (double value : x) ASSERT_TRUE(std::isfinite(value)) << name;
  }
};
TYPED_TEST_SUITE(Options, AllImplementations, InstanceNames);

struct Case {
  const char* what;
  Activations activations;
};
const std::vector<Case> cases{
    {"l2 norm", {.l2_norm = true}},
    {"softplus", {.gate = Gate::softplus}},
    {"lower bound -5", {.gate = Gate::lower_bounded}},
    {"lower bound -0.3", {.gate = Gate::lower_bounded, .lower_bound = -0.3}},
    {"sigmoid", {.beta = Beta::sigmoid}},
    {"doubled sigmoid", {.beta = Beta::doubled_sigmoid}},
    {"write sigmoid", {.write_sigmoid = true}},
    {"all", {.l2_norm = true, .gate = Gate::softplus, .beta = Beta::doubled_sigmoid, .write_sigmoid = true}},
    {"all, bounded",
     {.l2_norm = true, .gate = Gate::lower_bounded, .beta = Beta::sigmoid, .write_sigmoid = true}},
};

bool applies(Rule rule, const Activations& activations) {
  return rule == Rule::gdn2 || !activations.write_sigmoid;
}
Activations all_of(Rule rule, Gate gate = Gate::softplus) {
  return {.l2_norm = true, .gate = gate, .beta = Beta::doubled_sigmoid, .write_sigmoid = rule == Rule::gdn2};
}

const Sizes ordinary{
    .batch = 2, .tokens = 70, .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 8};

TYPED_TEST(Options, EachAloneAndAllTogether) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const Case& each : cases) {
      if (!applies(rule, each.activations)) continue;
      SCOPED_TRACE(std::string(name_of(rule)) + ", " + each.what);
      this->check(this->problem(rule, ordinary, {-0.3}, 51, each.activations));
    }
}

TYPED_TEST(Options, SharedGatesAndPacking) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (Gate gate : {Gate::softplus, Gate::lower_bounded}) {
      SCOPED_TRACE(name_of(rule));
      this->check(this->problem(rule,
                                {.tokens = 150,
                                 .key_heads = 2,
                                 .value_heads = 6,
                                 .key_dim = 16,
                                 .value_dim = 8,
                                 .gate_heads = 2,
                                 .cu_seqlens = {0, 1, 1, 66, 130}},
                                {-0.2}, 52, all_of(rule, gate)));
    }
}

TYPED_TEST(Options, ParametersAreOptional) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    auto problem = this->problem(rule, ordinary, {-0.2}, 53, {.gate = Gate::softplus});
    problem.dt_bias.clear();
    this->check(problem);
    problem.activations.gate = Gate::lower_bounded;
    this->check(problem);
    problem.A_log.clear();
    this->check(problem);
  }
}

// A_log and dt_bias gather sums in which strong decay leaves little: nothing may drown in rounding.
TYPED_TEST(Options, ParameterGradientsUnderStrongDecay) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (double mean : {-0.01, -2.0, -6.0, -20.0}) {
      SCOPED_TRACE(std::string(name_of(rule)) + ", mean gate " + std::to_string(mean));
      this->check(this->problem(rule, {.tokens = 200, .key_dim = 16, .value_dim = 16}, {mean}, 54,
                                {.gate = Gate::softplus}));
    }
}

TYPED_TEST(Options, GateOfMinusInfinityIsNoDecay) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (Gate gate : {Gate::softplus, Gate::lower_bounded}) {
      SCOPED_TRACE(name_of(rule));
      auto problem = this->problem(rule, ordinary, {-0.3}, 55, {.gate = gate});
      for (std::size_t i = 0; i < problem.g.size(); i += 5)
        problem.g[i] = -std::numeric_limits<double>::infinity();
      this->check(problem);
    }
}

// Rates beyond float32, gates that forget everything, sigmoids at their ends.
TYPED_TEST(Options, SaturatedGatesKeepGradientsFinite) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (Gate gate : {Gate::softplus, Gate::lower_bounded})
      for (double log : {-200.0, 30.0, 88.0, 100.0, 300.0}) {
        SCOPED_TRACE(std::string(name_of(rule)) + ", A_log " + std::to_string(log));
        auto problem = this->problem(rule, ordinary, {-0.3}, 56, all_of(rule, gate));
        for (double& value : problem.A_log) value = log;
        for (auto* x : {&problem.g, &problem.beta, &problem.b, &problem.w})
          for (double& value : *x) value *= 30;
        problem = rounded<typename TypeParam::type>(problem);
        const Values values = this->run(problem);
        this->expect_finite(values);
        // A_log + raw_gate is a difference of large numbers, hence the slack; e^-200 is beyond float32.
        if (std::abs(log) <= 100) this->expect_close(values, solution(problem), 8);
      }
}

TYPED_TEST(Options, ZeroRowsThroughTheNorm) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    auto problem = this->problem(rule, ordinary, {-0.1}, 57, {.l2_norm = true});
    const auto dim = static_cast<std::size_t>(problem.key_dim);
    for (auto* x : {&problem.q, &problem.k})
      for (std::size_t row = 3; row * dim < x->size(); row += 7)
        std::fill_n(x->begin() + static_cast<std::ptrdiff_t>(row * dim), dim, 0.0);
    this->check(problem);
  }
}

// What forward keeps decides on time and memory, never on a bit; what it kept may be read any number of times.
TYPED_TEST(Options, KeptPreparationGivesTheSameBits) {
  using deltaport::recurrence::Keep;
  const std::vector<Sizes> shapes{
      {.batch = 2, .tokens = 70, .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 8},
      {.batch = 1, .tokens = 192, .key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128},
      {.tokens = 150,
       .key_heads = 2,
       .value_heads = 6,
       .key_dim = 64,
       .value_dim = 72,
       .gate_heads = 2,
       .cu_seqlens = {0, 1, 1, 66, 130}}};
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const Sizes& sizes : shapes) {
      SCOPED_TRACE(std::string(name_of(rule)) + ", T = " + std::to_string(sizes.tokens));
      if (!TypeParam::does(rule, sizes, 64)) continue;
      const auto problem = this->problem(rule, sizes, {-0.3}, 61, all_of(rule));
      auto options = TypeParam::options();
      const Values made_again =
          deltaport::conformance::run<typename TypeParam::type>(this->runtime, problem, options);
      options.keep = Keep::preparation;
      const Values kept =
          deltaport::conformance::run<typename TypeParam::type>(this->runtime, problem, options);
      for (const auto& [name, values] : made_again) EXPECT_TRUE(same_bits(values, kept.at(name))) << name;
    }
}

template <class TypeParam, class Inputs, class Forward, class Backward>
void expect_kept_by_cuda_alone(deltaport::Runtime& runtime, const Inputs& inputs, const Forward& forward,
                               const Backward& backward, std::int64_t bytes) {
  using T = typename TypeParam::type;
  auto options = TypeParam::options();
  EXPECT_FALSE(forward(inputs, options).saved.prepared.defined());
  options.keep = deltaport::recurrence::Keep::preparation;
  options.save_for_backward = false;
  EXPECT_FALSE(forward(inputs, options).saved.prepared.defined());
  options.save_for_backward = true;
  auto saved = forward(inputs, options).saved;
  if (TypeParam::implementation != deltaport::recurrence::Implementation::cuda) {
    EXPECT_FALSE(saved.prepared.defined());
    EXPECT_EQ(bytes, 0);
    return;
  }
  const std::int64_t elements = saved.prepared.size();
  EXPECT_EQ(elements * static_cast<std::int64_t>(sizeof(T)), bytes);
  const auto d_o = saved.inputs.v;
  const auto gradients = [&] {
    std::vector<double> values;
    const auto out = backward(saved, d_o);
    const std::vector<deltaport::Tensor<T>> tensors{out.dq, out.dk, out.dv};
    for (const auto& x : tensors)
      for (const T each : deltaport::to_vector(runtime.compute(), x))
        values.push_back(static_cast<deltaport::Accumulate<T>>(each));
    return values;
  };
  EXPECT_TRUE(same_bits(gradients(), gradients()));
  saved.prepared = runtime.allocate_zero<T>("prepared", {elements - 8});
  EXPECT_THROW(backward(saved, d_o), deltaport::ShapeError);
  saved.prepared = {};
  EXPECT_NO_THROW(backward(saved, d_o));
}
TYPED_TEST(Options, PreparationIsKeptByCudaAlone) {
  using Value = typename TypeParam::type;
  namespace recurrence = deltaport::recurrence;
  const Sizes sizes{
      .tokens = 100, .key_heads = 1, .value_heads = 3, .key_dim = 64, .cu_seqlens = {0, 30, 100}};
  auto keeping = TypeParam::options();
  keeping.keep = recurrence::Keep::preparation;
  const auto gdn = gdn_inputs<Value>(this->runtime, this->problem(Rule::gdn, sizes, {-0.3}, 62));
  expect_kept_by_cuda_alone<TypeParam>(
      this->runtime, gdn,
      [&](const auto& in, const auto& o) { return recurrence::gdn_forward<Value>(this->runtime, in, o); },
      [&](const auto& saved, const auto& d_o) {
        return recurrence::gdn_backward<Value>(this->runtime, saved, d_o);
      },
      recurrence::gdn_prepared_bytes(deltaport::dtype_of<Value>, 100, 2, 3, 64, 8, keeping));
  const auto gdn2 = gdn2_inputs<Value>(this->runtime, this->problem(Rule::gdn2, sizes, {-0.3}, 63));
  expect_kept_by_cuda_alone<TypeParam>(
      this->runtime, gdn2,
      [&](const auto& in, const auto& o) { return recurrence::gdn2_forward<Value>(this->runtime, in, o); },
      [&](const auto& saved, const auto& d_o) {
        return recurrence::gdn2_backward<Value>(this->runtime, saved, d_o);
      },
      recurrence::gdn2_prepared_bytes(deltaport::dtype_of<Value>, 100, 2, 3, 64, 8, keeping));
}

// Kimi Delta Attention is GDN2 with the erase and the write gate broadcast from one beta.
TYPED_TEST(Options, KdaIsGdn2WithOneBeta) {
  auto problem = this->problem(Rule::gdn2, ordinary, {-0.3}, 58);
  const auto K = static_cast<std::size_t>(problem.key_dim), V = static_cast<std::size_t>(problem.value_dim);
  for (std::size_t i = 0; i < problem.b.size(); ++i) problem.b[i] = problem.b[i / K * K];
  for (std::size_t i = 0; i < problem.w.size(); ++i) problem.w[i] = problem.b[i / V * K];
  this->check(problem);
  // Against GDN, where the decay is one number too: its dbeta is db and dw added up.
  auto gdn = problem;
  gdn.rule = Rule::gdn;
  gdn.g.clear();
  for (std::size_t i = 0; i < problem.b.size(); ++i) problem.g[i] = problem.g[i / K * K];
  for (std::size_t i = 0; i < problem.b.size(); i += K) {
    gdn.g.push_back(problem.g[i]);
    gdn.beta.push_back(problem.b[i]);
  }
  gdn.b.clear();
  gdn.w.clear();
  const Values kda = this->run(problem);
  std::vector<double> dbeta(gdn.beta.size());
  for (std::size_t i = 0; i < problem.b.size(); ++i) dbeta[i / K] += kda.at("db")[i];
  for (std::size_t i = 0; i < problem.w.size(); ++i) dbeta[i / V] += kda.at("dw")[i];
  const Values& expected = solution(gdn);
  EXPECT_TRUE(this->close(kda.at("o"), expected.at("o"), TypeParam::tolerance("o")));
  EXPECT_TRUE(this->close(dbeta, expected.at("dbeta"), 2 * TypeParam::tolerance("db")));
}

TYPED_TEST(Options, StepsEqualForward) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const Case& each : cases) {
      if (!applies(rule, each.activations)) continue;
      SCOPED_TRACE(std::string(name_of(rule)) + ", " + each.what);
      const auto problem = this->problem(rule, ordinary, {-0.3}, 59, each.activations);
      this->expect_close(run_steps<typename TypeParam::type>(this->runtime, problem),
                         this->run(problem, 64, Pass::forward));
    }
}

// Sequences may keep their states anywhere; a padding row changes nothing.
TYPED_TEST(Options, ScatteredSteps) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    const auto problem =
        this->problem(rule, {.batch = 4, .tokens = 5, .value_heads = 2}, {-0.3}, 60, all_of(rule));
    const std::vector<std::int32_t> slots{5, -1, 0, 2};
    Values dense = run_steps<typename TypeParam::type>(this->runtime, problem);
    Values scattered = run_steps<typename TypeParam::type>(this->runtime, problem, slots);
    const std::size_t size = dense["final_state"].size() / 4, row = dense["o"].size() / 4;
    for (std::size_t n = 0; n < 4; ++n)
      for (std::size_t i = 0; i < row; ++i)
        EXPECT_EQ(scattered["o"][n * row + i], slots[n] < 0 ? 0.0 : dense["o"][n * row + i]);
    std::vector<double> expected(scattered["final_state"].size(), 7.0);
    for (std::size_t n = 0; n < 4; ++n)
      for (std::size_t i = 0; i < size && slots[n] >= 0; ++i)
        expected[static_cast<std::size_t>(slots[n]) * size + i] = dense["final_state"][n * size + i];
    EXPECT_TRUE(same_bits(scattered["final_state"], expected));
  }
}

}  // namespace
