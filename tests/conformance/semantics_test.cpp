// SPDX-License-Identifier: Apache-2.0
// What must hold bit for bit: packing, causality, repetition, isolation of NaN, rows outside every sequence.
#include <cmath>
#include <limits>
#include <utility>

#include "conformance/implementations.hpp"

namespace {

using namespace deltaport::conformance;

template <class Implementation>
class Semantics : public Suite<Implementation> {};
TYPED_TEST_SUITE(Semantics, AllImplementations, InstanceNames);

Activations all_of(Rule rule) {
  return {.l2_norm = true,
          .gate = Gate::softplus,
          .beta = Beta::doubled_sigmoid,
          .write_sigmoid = rule == Rule::gdn2};
}

bool is_token_wise(const std::string& name) {
  return name != "final_state" && name != "dinitial_state" && name != "dA_log" && name != "ddt_bias";
}

TYPED_TEST(Semantics, PackedEqualsAlone) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    // Boundaries at 1, 63, 64 and 65, documents of one token, an empty one, and a rest that no sequence
    // covers.
    const auto problem = this->problem(rule,
                                       {.tokens = 230,
                                        .key_heads = 2,
                                        .value_heads = 4,
                                        .key_dim = 16,
                                        .value_dim = 8,
                                        .gate_heads = 2,
                                        .cu_seqlens = {0, 1, 63, 64, 65, 65, 193, 220}},
                                       {-0.1}, 21);
    const Values packed = this->run(problem);
    for (std::int64_t n = 0; n < problem.sequences(); ++n) {
      if (problem.begin(n) == problem.end(n)) continue;
      for (const auto& [name, values] : this->run(only_sequence(problem, n)))
        EXPECT_TRUE(same_bits(slice(problem, name, packed.at(name), n), values))
            << name << " of sequence " << n;
    }
  }
}

// Whole chunks, full heads, the norm inside and nothing else: an implementation may have kernels for dense batches of these,
// which then must give the bits of those that packed documents take.
TYPED_TEST(Semantics, PackedEqualsAloneInWholeChunks) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (int dim : {64, 128}) {
      SCOPED_TRACE(std::string(name_of(rule)) + ", " + std::to_string(dim));
      const auto problem = this->problem(rule,
                                         {.tokens = 320,
                                          .key_heads = 2,
                                          .value_heads = 2,
                                          .key_dim = dim,
                                          .value_dim = dim,
                                          .cu_seqlens = {0, 64, 320}},
                                         {-0.3}, 25, {.l2_norm = true});
      const Values packed = this->run(problem);
      for (std::int64_t n = 0; n < problem.sequences(); ++n)
        for (const auto& [name, values] : this->run(only_sequence(problem, n)))
          EXPECT_TRUE(same_bits(slice(problem, name, packed.at(name), n), values))
              << name << " of sequence " << n;
    }
}

TYPED_TEST(Semantics, EmptySequenceHandsItsStateOn) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    const auto problem =
        this->problem(rule, {.tokens = 5, .key_dim = 8, .value_dim = 8, .cu_seqlens = {0, 0, 5, 5}}, {}, 22);
    const Values out = this->run(problem);
    for (std::int64_t n : {0, 2}) {
      EXPECT_EQ(slice(problem, "final_state", out.at("final_state"), n),
                slice(problem, "initial_state", problem.initial_state, n));
      EXPECT_EQ(slice(problem, "dinitial_state", out.at("dinitial_state"), n),
                slice(problem, "d_final_state", problem.d_final_state, n));
    }
  }
}

// Whatever stands there, NaN too: it reaches no result, sums over tokens included.
TYPED_TEST(Semantics, UncoveredRowsAreZero) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const Activations& activations : {Activations{}, all_of(rule)}) {
      SCOPED_TRACE(std::string(name_of(rule)) + (activations.l2_norm ? ", all options" : ""));
      const auto problem = this->problem(rule,
                                         {.tokens = 80,
                                          .value_heads = 2,
                                          .key_dim = 8,
                                          .value_dim = 8,
                                          .gate_heads = 1,
                                          .cu_seqlens = {0, 3, 70}},
                                         {-0.3}, 23, activations);
      auto poisoned = problem;
      for (auto* x : {&poisoned.q, &poisoned.k, &poisoned.v, &poisoned.g, &poisoned.beta, &poisoned.b,
                      &poisoned.w, &poisoned.d_o})
        std::fill(x->begin() + static_cast<std::ptrdiff_t>(x->size() / 80 * 70), x->end(),
                  std::numeric_limits<double>::quiet_NaN());
      auto rest = problem;
      rest.cu_seqlens = {70, 80};
      const Values clean = this->run(problem);
      for (const auto& [name, values] : this->run(poisoned)) {
        EXPECT_TRUE(same_bits(values, clean.at(name))) << name;
        if (!is_token_wise(name)) continue;
        for (double value : slice(rest, name, values, 0)) ASSERT_EQ(value, 0.0) << name;
      }
    }
}

TYPED_TEST(Semantics, Repeatable) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    const auto problem = this->problem(
        rule, {.batch = 2, .tokens = 100, .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16},
        {}, 24);
    const Values first = this->run(problem);
    for (int i = 0; i < 5; ++i)
      for (const auto& [name, values] : this->run(problem))
        ASSERT_TRUE(same_bits(values, first.at(name))) << name;
  }
}

// Moves token `at` of every input; what is T stays T.
template <class T>
Problem<double> edited_at(const Problem<double>& problem, std::int64_t at) {
  auto edited = problem;
  const auto change = [&](std::vector<double>& x, double factor, double shift) {
    const std::size_t width = x.size() / static_cast<std::size_t>(problem.tokens);
    for (std::size_t i = 0; i < width; ++i) {
      double& value = x[static_cast<std::size_t>(at) * width + i];
      value = static_cast<float>(value * factor + shift);
    }
  };
  change(edited.g, 3.0, -25.0);
  change(edited.q, -2.0, 0.3);
  change(edited.k, -0.5, 0.1);
  change(edited.v, 5.0, 1.0);
  for (auto* x : {&edited.beta, &edited.b, &edited.w}) change(*x, 0.5, 0.0);
  return rounded<T>(edited);
}

// Nothing before a token changes when the token or its gate changes: outputs, and gradients of a loss on
// earlier rows.
TYPED_TEST(Semantics, Causal) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const Activations& activations : {Activations{}, all_of(rule)})
      for (std::int64_t edit : {1, 7, 15, 16, 17, 31, 33, 48, 63, 64, 70, 129}) {
        SCOPED_TRACE(std::string(name_of(rule)) + ", token " + std::to_string(edit));
        auto problem =
            this->problem(rule, {.tokens = 130, .key_dim = 16, .value_dim = 8}, {-0.5}, 25, activations);
        problem.d_final_state.clear();
        std::fill(problem.d_o.begin() + edit * problem.value_dim, problem.d_o.end(), 0.0);
        auto prefix = problem;
        prefix.cu_seqlens = {0, static_cast<std::int32_t>(edit)};
        const Values before = this->run(problem),
                     after = this->run(edited_at<typename TypeParam::type>(problem, edit));
        for (const auto& [name, values] : before) {
          if (!is_token_wise(name) && name != "dinitial_state") continue;
          EXPECT_TRUE(same_bits(slice(prefix, name, values, 0), slice(prefix, name, after.at(name), 0)))
              << name;
        }
      }
}

// The mirror: an incoming gradient reaches no token after its own.
TYPED_TEST(Semantics, IncomingGradientsReachOnlyThePast) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (std::int64_t edit : {0, 15, 16, 40, 63, 64, 100}) {
      SCOPED_TRACE(std::string(name_of(rule)) + ", token " + std::to_string(edit));
      const auto problem = this->problem(rule, {.tokens = 130, .key_dim = 16, .value_dim = 8}, {-0.5}, 28);
      auto edited = problem;
      for (int c = 0; c < problem.value_dim; ++c)
        edited.d_o[static_cast<std::size_t>(edit * problem.value_dim + c)] = 3.0 - c;
      auto rest = problem;
      rest.cu_seqlens = {static_cast<std::int32_t>(edit) + 1, 130};
      const Values before = this->run(problem), after = this->run(edited);
      for (const auto& [name, values] : before) {
        if (!is_token_wise(name)) continue;
        EXPECT_TRUE(same_bits(slice(rest, name, values, 0), slice(rest, name, after.at(name), 0))) << name;
      }
    }
}

TYPED_TEST(Semantics, NanStaysInItsSequence) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const Activations& activations : {Activations{}, all_of(rule)}) {
      SCOPED_TRACE(std::string(name_of(rule)) + (activations.l2_norm ? ", all options" : ""));
      auto problem = this->problem(
          rule,
          {.tokens = 150, .value_heads = 2, .key_dim = 16, .value_dim = 8, .cu_seqlens = {0, 40, 75, 150}},
          {-0.1}, 26, activations);
      const Values clean = this->run(problem);
      for (auto* x :
           {&problem.q, &problem.k, &problem.v, &problem.g, &problem.beta, &problem.b, &problem.w}) {
        if (x->empty()) continue;
        double& value = (*x)[x->size() / 2 - x->size() / 15];
        const double kept = std::exchange(value, std::numeric_limits<double>::quiet_NaN());
        bool seen = false;
        for (const auto& [name, values] : this->run(problem)) {
          if (name == "dA_log" || name == "ddt_bias") continue;  // sums over all sequences
          for (std::int64_t n : {0, 2}) {
            EXPECT_TRUE(same_bits(slice(problem, name, values, n), slice(problem, name, clean.at(name), n)))
                << name << " of sequence " << n;
          }
          for (double result : slice(problem, name, values, 1)) seen = seen || std::isnan(result);
        }
        EXPECT_TRUE(seen) << "a NaN must not be swallowed";
        value = kept;
      }
    }
}

// More (sequence, head) pairs than 16 bits of grid.
TYPED_TEST(Semantics, ManySequences) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    const auto problem = this->problem(
        rule, {.batch = 32800, .tokens = 1, .value_heads = 2, .key_dim = 2, .value_dim = 2}, {}, 27);
    this->check(problem);
  }
}

}  // namespace
