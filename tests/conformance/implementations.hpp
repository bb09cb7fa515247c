// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "conformance/harness.hpp"
#include "recurrence/implementations.hpp"

namespace deltaport::conformance {

/// How exact an implementation is: `float32` keeps everything in float32 until results are written, `half` rounds
/// in between, within the bounds that every implementation must keep.
enum class Inside { float32, half };

/// An implementation at one type, as a type parameter of the suites.
template <class T, recurrence::Implementation which, Inside inside = Inside::float32>
struct Under {
  using type = T;
  static constexpr auto implementation = which;
  static constexpr bool is_double = sizeof(T) == 8;
  static constexpr double forward_tolerance = is_double ? 1e-10 : 2e-6;
  static constexpr double gradient_tolerance = is_double ? 1e-10 : 1e-5;
  /// Largest relative error of one rounding to T.
  static constexpr double rounding = std::is_same_v<T, bfloat16>  ? 0x1p-8
                                     : std::is_same_v<T, float16> ? 0x1p-11
                                                                  : 0;
  /// What float16 cannot tell from zero, as a result or, in `half`, as a decay inside.
  static constexpr double floor = std::is_same_v<T, float16> || inside == Inside::half ? 0x1p-25 : 0;
  /// Heads so narrow that a few roundings of operands make the whole error lie off further than sums of many.
  static double narrow_slack(int key_dim) { return inside == Inside::half && key_dim < 32 ? 1.25 : 1; }

  static recurrence::Options options(int chunk_size = 64) {
    recurrence::Options options;
    options.implementation = implementation;
    options.chunk_size = chunk_size;
    return options;
  }
  static bool is_forward(const std::string& name) { return name == "o" || name == "final_state"; }
  static double tolerance(const std::string& name) {
    const bool wide = name == "final_state" || name == "dinitial_state" || name == "dg" || name == "dbeta" ||
                      name == "dA_log" || name == "ddt_bias";
    const double exact = is_forward(name) ? forward_tolerance : gradient_tolerance;
    if constexpr (is_half<T> && inside == Inside::half) {
      if (is_forward(name)) return 4e-3;
      return name == "dq" || name == "dk" || name == "dv" || name == "dinitial_state" ? 8e-3 : 2e-2;
    }
    return wide ? exact : rounding + exact;
  }
  static bool does(Rule rule, const Sizes& s, int chunk_size) {
    recurrence::Extents x;
    x.batch = s.batch;
    x.tokens = s.tokens;
    x.key_heads = s.key_heads;
    x.value_heads = s.value_heads;
    x.gate_heads = s.gate_heads == 0 ? s.value_heads : s.gate_heads;
    x.key_dim = s.key_dim;
    x.value_dim = s.value_dim;
    x.sequences = s.cu_seqlens.empty() ? s.batch : static_cast<std::int64_t>(s.cu_seqlens.size()) - 1;
    const auto r = rule == Rule::gdn ? recurrence::Rule::gdn : recurrence::Rule::gdn2;
    const recurrence::Options o = options(chunk_size);
    if (which == recurrence::Implementation::host) return recurrence::host::supports(r, x, dtype_of<T>, o);
    if (which == recurrence::Implementation::cuda) return recurrence::cuda::supports(r, x, dtype_of<T>, o);
    return true;
  }
  /// How much further results may lie off where one key comes over and over and a factor of nearly -1 is left of the
  /// past: the errors of a chunk are swept along by its large alternating terms. Those of matrix units are roundings of
  /// operands to halves: o 7 times, the state 14 times, dbeta 15 times its bound (0.027, 0.054 and 0.3).
  static constexpr double alternating_slack = inside == Inside::half ? 20 : 4;
  /// The same where a state remembers a thousand tokens: roundings of operands to halves gather to 4.15e-3 of o.
  static constexpr double long_memory_slack = inside == Inside::half ? 1.1 : 1;
  /// The sizes, with the head sizes and chunk that the implementation can do.
  static Sizes fit(Rule rule, Sizes s) {
    for (int dim : {0, 64, 128}) {
      if (dim != 0) s.key_dim = s.value_dim = dim;
      if (does(rule, s, 64)) break;
    }
    return s;
  }
};

using recurrence::Implementation;
/// The list holds what this build has: `host` is for host builds, `cuda` for CUDA builds.
using DoubleImplementations =
    ::testing::Types<Under<double, Implementation::reference>, Under<double, Implementation::portable>>;
using AllImplementations =
    ::testing::Types<Under<double, Implementation::reference>, Under<float, Implementation::reference>,
                     Under<bfloat16, Implementation::reference>, Under<double, Implementation::portable>,
                     Under<float, Implementation::portable>, Under<bfloat16, Implementation::portable>,
                     Under<float16, Implementation::portable>,
#ifdef KOKKOS_ENABLE_CUDA
                     Under<bfloat16, Implementation::cuda, Inside::half>,
                     Under<float16, Implementation::cuda, Inside::half>>;
#else
                     Under<float, Implementation::host>, Under<bfloat16, Implementation::host>,
                     Under<float16, Implementation::host>>;
#endif

/// Names of the instances: reference_float64, ...
struct InstanceNames {
  template <class Implementation>
  static std::string GetName(int) {
    return std::string(recurrence::name_of(Implementation::implementation)) + "_" +
           std::string(deltaport::name_of(dtype_of<typename Implementation::type>));
  }
};

inline const char* name_of(Rule rule) {
  return rule == Rule::gdn ? "gdn" : "gdn2";
}

/// Every block of the arena starts as NaN, so that a read of unwritten memory shows in the result.
inline RuntimeOptions poisoned() {
  RuntimeOptions options;
  options.arena.poison = true;
  return options;
}

template <class Under>
class Suite : public ::testing::Test {
 protected:
  using T = typename Under::type;
  Runtime runtime{poisoned()};

  void SetUp() override {
    const bool available = recurrence::available(Under::implementation);
    // The kernels of `cuda` are in every CUDA build; whether they can run is known only on the device that runs the test,
    // when the list of tests has long been made. Whatever else is on the list must be there.
    if (Under::implementation == Implementation::cuda && !available)
      GTEST_SKIP() << "this device lacks what the kernels need";
    ASSERT_TRUE(available) << recurrence::name_of(Under::implementation);
  }
  /// Leaves a line of figures in the log.
  static void TearDownTestSuite() {
    for (const auto& [name, error] : worst()) std::printf("%s %.1e  ", name.c_str(), error);
    if (!worst().empty()) std::printf("(largest relative errors)\n");
  }
  static std::map<std::string, double>& worst() {
    static std::map<std::string, double> errors;
    return errors;
  }
  /// A random problem of sizes that the implementation can do, rounded to its type.
  Problem<double> problem(Rule rule, const Sizes& sizes, Gates gates, std::uint64_t seed,
                          const Activations& activations = {}) {
    return rounded<T>(random_problem(rule, Under::fit(rule, sizes), gates, seed, activations));
  }
  Values run(const Problem<double>& problem, int chunk_size = 64, Pass pass = Pass::forward_and_backward) {
    const Sizes sizes{.tokens = problem.tokens,
                      .key_heads = problem.key_heads,
                      .value_heads = problem.value_heads,
                      .key_dim = problem.key_dim,
                      .value_dim = problem.value_dim,
                      .gate_heads = problem.gate_heads};
    if (!Under::does(problem.rule, sizes, chunk_size)) chunk_size = 64;
    return conformance::run<T>(runtime, problem, Under::options(chunk_size), pass);
  }
  void check(const Problem<double>& problem, int chunk_size = 64, double slack = 1) {
    slack *= Under::narrow_slack(problem.key_dim);
    expect_close(run(problem, chunk_size), solution(problem), slack);
  }
  void expect_close(const Values& values, const Values& expected, double slack = 1) {
    for (const auto& [name, reference] : expected) {
      ASSERT_TRUE(values.count(name)) << name;
      EXPECT_TRUE(close(values.at(name), reference, slack * Under::tolerance(name))) << name;
      if (rms_difference(values.at(name), reference) <= Under::floor) continue;
      worst()[name] = std::max(worst()[name], relative_error(values.at(name), reference));
    }
    EXPECT_EQ(values.size(), expected.size());
  }
  /// Within the tolerance, or nearer than the type can tell.
  static ::testing::AssertionResult close(const std::vector<double>& x, const std::vector<double>& expected,
                                          double tolerance) {
    const double error = relative_error(x, expected);
    if (error <= tolerance || rms_difference(x, expected) <= Under::floor)
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "relative error " << error << ", allowed " << tolerance;
  }
};

}  // namespace deltaport::conformance
