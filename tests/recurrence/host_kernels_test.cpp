// SPDX-License-Identifier: Apache-2.0
// The host kernels of every instruction set that this machine runs; conformance holds the best of them only.
#include "recurrence/host/dispatch.hpp"

#include <gtest/gtest.h>

#include <cmath>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "conformance/harness.hpp"

namespace {

using namespace deltaport;
using namespace deltaport::conformance;
namespace host = deltaport::recurrence::host;
using recurrence::Implementation;

recurrence::Options on(Implementation implementation) {
  recurrence::Options options;
  options.implementation = implementation;
  return options;
}

/// NaN in fresh memory shows what is read before it is written.
RuntimeOptions poisoned() {
  RuntimeOptions options;
  options.arena.poison = true;
  return options;
}

const std::vector<Sizes> sizes{
    {.tokens = 1, .key_dim = 8, .value_dim = 8},
    {.tokens = 65, .key_dim = 24, .value_dim = 40},  // half vectors at the end of rows
    {.tokens = 130, .key_dim = 64, .value_dim = 64},
    {.tokens = 79, .key_dim = 96, .value_dim = 136},  // tiles of every width, a slice of one vector
    {.tokens = 96, .key_dim = 128, .value_dim = 128},
    {.tokens = 70, .key_dim = 256, .value_dim = 200},
    {.tokens = 130, .key_heads = 3, .value_heads = 6, .key_dim = 40, .value_dim = 72, .gate_heads = 3},
    {.tokens = 150, .value_heads = 5, .key_dim = 32, .value_dim = 48, .cu_seqlens = {0, 1, 1, 48, 49, 146}},
};

template <class Body>
void for_each_case(const Body& body) {
  for (std::string_view isa : host::instruction_sets()) {
    const host::UseInstructionSet use(isa);
    std::uint64_t seed = 300;
    for (Rule rule : {Rule::gdn, Rule::gdn2})
      for (const Sizes& s : sizes) {
        SCOPED_TRACE(std::string(isa) + (rule == Rule::gdn ? " gdn" : " gdn2") +
                     " T=" + std::to_string(s.tokens) + " K=" + std::to_string(s.key_dim) +
                     " V=" + std::to_string(s.value_dim));
        body(random_problem(rule, s, {-0.2}, ++seed));
      }
  }
}

TEST(HostKernels, AgreeWithTheOracle) {
  Runtime runtime(poisoned());
  for_each_case([&](const Problem<double>& problem) {
    const Values found = conformance::run<float>(runtime, problem, on(Implementation::host));
    for (const auto& [name, values] : solution(problem))
      EXPECT_LE(relative_error(found.at(name), values), name == "o" || name == "final_state" ? 2e-6 : 1e-5)
          << name;
  });
}

// Storage is converted at loads and stores only: halves give float32's results, rounded once.
template <class T>
void expect_rounded_once() {
  Runtime runtime(poisoned());
  for_each_case([&](const Problem<double>& any) {
    const auto problem = rounded<T>(any);
    const Values halves = conformance::run<T>(runtime, problem, on(Implementation::host));
    for (auto& [name, values] : conformance::run<float>(runtime, problem, on(Implementation::host))) {
      std::vector<double> expected = values;
      const bool is_float =
          name == "final_state" || name == "dinitial_state" || name == "dg" || name == "dbeta";
      if (!is_float)
        for (double& x : expected) x = static_cast<float>(T(static_cast<float>(x)));
      EXPECT_TRUE(same_bits(halves.at(name), expected)) << name;
    }
  });
}
TEST(HostKernels, Bfloat16IsRoundedOnce) {
  expect_rounded_once<bfloat16>();
}
TEST(HostKernels, Float16IsRoundedOnce) {
  expect_rounded_once<float16>();
}

// Values that halves hold in special ways pass through v -> o unchanged: one token, k = q = e_0, beta = 1.
template <class T>
void expect_passed_through(const std::vector<float>& values) {
  Runtime runtime(poisoned());
  for (std::string_view isa : host::instruction_sets()) {
    SCOPED_TRACE(isa);
    const host::UseInstructionSet use(isa);
    auto problem = random_problem(
        Rule::gdn, {.tokens = 1, .value_dim = static_cast<int>(values.size()), .with_states = false}, {}, 1);
    for (int a = 0; a < problem.key_dim; ++a) problem.k[a] = problem.q[a] = a == 0;
    problem.beta[0] = problem.scale = 1.0;
    for (std::size_t i = 0; i < values.size(); ++i) problem.v[i] = values[i];
    auto options = on(Implementation::host);
    options.scale = 1.0;
    const Values out = conformance::run<T>(runtime, problem, options, Pass::forward);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = static_cast<float>(T(values[i]));
      EXPECT_EQ(out.at("o")[i], expected) << values[i];
    }
  }
}
TEST(HostKernels, ConvertSpecialHalves) {
  expect_passed_through<float16>({65504.0f, -65504.0f, 6.104e-5f, 6.0976e-5f, 5.96e-8f, -5.96e-8f, 1.0f,
                                  1.00049f, 1.00146f, 2049.0f, 2051.0f, -0.333f, 3.0e-6f, 1024.5f, 0.1f,
                                  0.0f});
  expect_passed_through<bfloat16>(
      {3.0e38f, -3.0e38f, 1.5e-38f, 1.00390625f, 1.01171875f, -0.333f, 257.0f, 0.0f});
}

// Strong gates make denormal numbers; the flush to zero, where there is one, must not outlive the call.
#if defined(__SSE2__)
TEST(HostKernels, LeaveTheFloatingPointModeAsItWas) {
  Runtime runtime;
  const auto problem = random_problem(Rule::gdn, {.tokens = 70, .key_dim = 16, .value_dim = 16}, {-5.0}, 2);
  const unsigned mode = _mm_getcsr() & 0xffc0u;  // without the sticky exception flags
  conformance::run<float>(runtime, problem, on(Implementation::host));
  EXPECT_EQ(_mm_getcsr() & 0xffc0u, mode);
  unsigned differing = 0;
  Kokkos::parallel_reduce(
      Kokkos::RangePolicy<ExecutionSpace>(runtime.compute(), 0, 64),
      [=](int, unsigned& sum) { sum += (_mm_getcsr() & 0xffc0u) != mode; }, differing);
  EXPECT_EQ(differing, 0u);
}
#endif

TEST(HostKernels, ChunksOtherThan64AreRefused) {
  Runtime runtime;
  const auto problem = random_problem(Rule::gdn, {.tokens = 4}, {}, 3);
  auto options = on(Implementation::host);
  options.chunk_size = 32;
  try {
    conformance::run<float>(runtime, problem, options);
    ADD_FAILURE() << "accepted";
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("chunk_size = 64"), std::string::npos) << e.what();
  }
}

TEST(HostKernels, UnknownInstructionSetsAreRefusedByName) {
  EXPECT_FALSE(host::instruction_sets().empty());
  try {
    host::kernels("abacus");
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
    EXPECT_NE(std::string(e.what()).find("\"abacus\""), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("baseline"), std::string::npos) << e.what();
  }
}

}  // namespace
