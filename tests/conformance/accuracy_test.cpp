// SPDX-License-Identifier: Apache-2.0
// Every implementation against the double-precision oracle, forward and all gradients.
#include <cmath>
#include <limits>
#include <random>

#include "conformance/implementations.hpp"

namespace {

using namespace deltaport::conformance;

template <class Implementation>
class Accuracy : public Suite<Implementation> {};
TYPED_TEST_SUITE(Accuracy, AllImplementations, InstanceNames);

struct Shape {
  const char* what;
  Sizes sizes;
  int chunk_size = 64;
};

const std::vector<Shape> shapes{
    {"one token", {.tokens = 1}},
    {"one full chunk", {.tokens = 64, .key_dim = 16, .value_dim = 24}},
    {"one short of a chunk", {.tokens = 63, .key_dim = 24, .value_dim = 16}},
    {"one more than a chunk", {.batch = 2, .tokens = 65, .key_dim = 16, .value_dim = 16}},
    {"several chunks", {.tokens = 130, .key_heads = 2, .value_heads = 2, .key_dim = 32, .value_dim = 16}},
    {"chunks of 16", {.tokens = 50, .key_dim = 16, .value_dim = 8}, 16},
    {"chunks of 32", {.tokens = 77, .key_dim = 8, .value_dim = 16}, 32},
    {"odd head sizes", {.tokens = 70, .key_dim = 5, .value_dim = 7}},
    {"wide heads", {.tokens = 66, .key_dim = 128, .value_dim = 128}},
    {"no states", {.tokens = 67, .key_dim = 8, .value_dim = 8, .with_states = false}},
    {"groups of 2",
     {.batch = 2, .tokens = 66, .key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 16}},
    {"groups of 4, shared gates",
     {.tokens = 66, .key_heads = 2, .value_heads = 8, .key_dim = 8, .value_dim = 8, .gate_heads = 2}},
    {"packed, ragged",
     {.tokens = 200,
      .key_heads = 1,
      .value_heads = 2,
      .key_dim = 8,
      .value_dim = 8,
      .cu_seqlens = {0, 1, 1, 64, 128, 129, 194}}},
    {"packed, shared gates",
     {.tokens = 90,
      .value_heads = 2,
      .key_dim = 8,
      .value_dim = 8,
      .gate_heads = 1,
      .cu_seqlens = {0, 70, 71, 90}}},
};

TYPED_TEST(Accuracy, AllShapes) {
  std::uint64_t seed = 100;
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(std::string(shape.what) + ", " + name_of(rule));
      const auto problem = this->problem(rule, shape.sizes, {-0.1}, ++seed);
      this->check(problem, shape.chunk_size);
    }
}

// Every head size that models use, and other multiples of 8; every length around a chunk and every group.
TYPED_TEST(Accuracy, HeadSizes) {
  const std::vector<std::pair<int, int>> dims{{32, 64},   {64, 32},   {96, 40}, {128, 192},
                                              {192, 128}, {256, 256}, {24, 136}};
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (const auto& [k, v] : dims) {
      SCOPED_TRACE(std::string(name_of(rule)) + ", K = " + std::to_string(k) + ", V = " + std::to_string(v));
      const Sizes sizes{.tokens = k * v > 10000 ? 20 : 70, .key_dim = k, .value_dim = v};
      this->check(this->problem(rule, sizes, {-0.1}, 40));
    }
}

TYPED_TEST(Accuracy, LengthsChunksAndGroups) {
  const int lengths[] = {1, 15, 63, 64, 65, 75, 127, 500}, groups[] = {1, 2, 3, 4, 8, 1, 2, 1};
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (int i = 0; i < 8; ++i)
      for (int chunk_size : {16, 32, 64}) {
        SCOPED_TRACE(std::string(name_of(rule)) + ", T = " + std::to_string(lengths[i]) +
                     ", G = " + std::to_string(groups[i]) + ", C = " + std::to_string(chunk_size));
        const Sizes sizes{.tokens = lengths[i], .value_heads = groups[i], .key_dim = 16, .value_dim = 8};
        this->check(this->problem(rule, sizes, {-0.1}, 41 + static_cast<std::uint64_t>(i)), chunk_size);
      }
}

TYPED_TEST(Accuracy, MildAndFierceGates) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (double mean : {-0.01, -0.5, -1.0, -2.0, -5.914, -6.0, -20.0}) {
      SCOPED_TRACE(std::string(name_of(rule)) + ", mean gate " + std::to_string(mean));
      const auto problem = this->problem(rule, {.tokens = 140, .key_dim = 32, .value_dim = 32}, {mean}, 7);
      this->check(problem);
    }
}

TYPED_TEST(Accuracy, ConstantGates) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (double gate : {0.0, -0.4022, -2.0, -5.92, -20.0, -1e4}) {  // -0.4022 * 64: a chunk decays by 6.5e-12
      SCOPED_TRACE(std::string(name_of(rule)) + ", gate " + std::to_string(gate));
      auto problem = this->problem(rule, {.tokens = 100, .key_dim = 16, .value_dim = 16}, {}, 8);
      for (double& g : problem.g) g = static_cast<float>(gate);
      this->check(problem);
    }
}

TYPED_TEST(Accuracy, SomeGatesForgetAllOrNothing) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    auto problem = this->problem(rule, {.batch = 2, .tokens = 131, .key_dim = 16, .value_dim = 8}, {-0.1}, 9);
    std::mt19937_64 engine(5);
    for (double& g : problem.g) {
      const auto kind = engine() % 12;
      if (kind == 0) g = -std::numeric_limits<double>::infinity();
      if (kind >= 9) g = 0.0;
      if (kind == 8) g = -1e30f;
    }
    this->check(problem);
    for (double& g : problem.g) g = -std::numeric_limits<double>::infinity();
    this->check(problem);
  }
}

// One key over and over: of the past 1 - beta is left, which alternates in sign beyond 1; hence the slack.
TYPED_TEST(Accuracy, RepeatedKeysAndStrongErase) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (double erase : {0.3, 0.835, 1.0, 1.9}) {
      SCOPED_TRACE(std::string(name_of(rule)) + ", erase " + std::to_string(erase));
      auto problem = this->problem(rule, {.tokens = 130, .key_dim = 16, .value_dim = 16}, {-0.01}, 10);
      const auto dim = static_cast<std::size_t>(problem.key_dim);
      for (std::size_t i = 0; i < problem.k.size(); ++i) problem.k[i] = problem.k[i % dim];
      for (auto* x : {&problem.beta, &problem.b})
        for (double& value : *x) value = erase;
      this->check(rounded<typename TypeParam::type>(problem), 64,
                  erase > 1 ? TypeParam::alternating_slack : 1);
    }
}

TYPED_TEST(Accuracy, RepeatedKeys) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    auto problem = this->problem(rule, {.tokens = 128, .key_dim = 16, .value_dim = 16}, {-0.01}, 10);
    const auto dim = static_cast<std::size_t>(problem.key_dim);
    for (std::size_t i = 0; i < problem.k.size(); ++i) problem.k[i] = problem.k[i % dim];
    this->check(problem);
  }
}

TYPED_TEST(Accuracy, LongSequence) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    this->check(this->problem(rule, {.tokens = 70000, .key_dim = 4, .value_dim = 4}, {-0.001}, 14), 64,
                TypeParam::long_memory_slack);
  }
}

// Long enough to be scanned in pieces where the past is forgotten; in between is a stretch that remembers.
TYPED_TEST(Accuracy, LongSequenceThatForgets) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (bool l2_norm : {false, true}) {
      SCOPED_TRACE(std::string(name_of(rule)) + (l2_norm ? ", l2 norm" : ""));
      auto problem = this->problem(rule, {.tokens = 2500, .key_dim = 16, .value_dim = 16}, {-0.8}, 18,
                                   {.l2_norm = l2_norm});
      const std::size_t width = problem.g.size() / 2500;
      for (std::size_t i = 700 * width; i < 1500 * width; ++i) problem.g[i] *= 0x1p-7;
      this->check(problem);
    }
}

TYPED_TEST(Accuracy, StepsEqualForward) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    SCOPED_TRACE(name_of(rule));
    const auto problem = this->problem(
        rule, {.batch = 3, .tokens = 70, .key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 8},
        {-0.2}, 15);
    this->expect_close(run_steps<typename TypeParam::type>(this->runtime, problem),
                       this->run(problem, 64, Pass::forward));
  }
}

// A sequence may be cut anywhere and its state handed over.
TYPED_TEST(Accuracy, StopAndContinueAnywhere) {
  for (Rule rule : {Rule::gdn, Rule::gdn2})
    for (std::int32_t cut : {1, 63, 64, 65, 127}) {
      SCOPED_TRACE(cut);
      auto whole = this->problem(rule, {.tokens = 128, .key_dim = 8, .value_dim = 8}, {-0.1}, 16);
      auto parts = whole;
      parts.cu_seqlens = {0, cut, 128};
      auto first = only_sequence(parts, 0);
      parts.initial_state.insert(parts.initial_state.end(), parts.initial_state.begin(),
                                 parts.initial_state.end());
      first.initial_state = whole.initial_state;
      parts.d_final_state.clear();
      auto second = only_sequence(parts, 1);
      second.initial_state = this->run(first, 64, Pass::forward)["final_state"];
      Values expected = this->run(whole, 64, Pass::forward), result = this->run(second, 64, Pass::forward);
      // Both sides have errors of their own.
      const double slack = std::sqrt(2.0) * TypeParam::narrow_slack(whole.key_dim);
      EXPECT_TRUE(
          this->close(result["o"], slice(parts, "o", expected["o"], 1), slack * TypeParam::tolerance("o")));
      EXPECT_TRUE(this->close(result["final_state"], expected["final_state"],
                              slack * TypeParam::tolerance("final_state")));
    }
}

template <class Under>
class DoubleAccuracy : public Suite<Under> {};
TYPED_TEST_SUITE(DoubleAccuracy, DoubleImplementations, InstanceNames);

// Directional derivatives of the implementation's own forward; differences need double precision.
TYPED_TEST(DoubleAccuracy, GradientsAreCentralDifferences) {
  for (Rule rule : {Rule::gdn, Rule::gdn2}) {
    auto problem = this->problem(
        rule, {.tokens = 70, .key_heads = 1, .value_heads = 2, .key_dim = 8, .value_dim = 8, .gate_heads = 1},
        {-0.3}, 17);
    Values gradients = this->run(problem);
    const std::vector<std::pair<const char*, std::vector<double>*>> inputs{
        {"dq", &problem.q},       {"dk", &problem.k},
        {"dv", &problem.v},       {"dg", &problem.g},
        {"db", &problem.b},       {"dw", &problem.w},
        {"dbeta", &problem.beta}, {"dinitial_state", &problem.initial_state}};
    const auto loss = [&] {
      Values out = this->run(problem, 64, Pass::forward);
      double sum = 0;
      for (std::size_t i = 0; i < out["o"].size(); ++i) sum += out["o"][i] * problem.d_o[i];
      for (std::size_t i = 0; i < out["final_state"].size(); ++i)
        sum += out["final_state"][i] * problem.d_final_state[i];
      return sum;
    };
    std::mt19937_64 engine(18);
    std::normal_distribution<double> normal;
    for (const auto& [name, x] : inputs) {
      if (x->empty()) continue;
      const std::vector<double> centre = *x;
      std::vector<double> direction(x->size());
      double expected = 0, norm = 0;
      for (std::size_t i = 0; i < direction.size(); ++i) {
        direction[i] = normal(engine);
        expected += direction[i] * gradients[name][i];
        norm += gradients[name][i] * gradients[name][i];
      }
      const double step = 1e-5;
      const auto moved = [&](double factor) {
        for (std::size_t i = 0; i < direction.size(); ++i) (*x)[i] = centre[i] + factor * direction[i];
        return loss();
      };
      // Fourth-order differences: the truncation error lies below the tolerance.
      const double numeric =
          (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step);
      *x = centre;
      EXPECT_LE(std::abs(numeric - expected), 1e-7 * std::sqrt(norm)) << name;
    }
  }
}

}  // namespace
