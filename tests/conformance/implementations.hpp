// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "conformance/harness.hpp"

namespace deltaport::conformance {

/// An implementation at one precision, as a type parameter of the suites.
template <class T, recurrence::Implementation implementation>
struct Under {
  using type = T;
  static recurrence::Options options(int chunk_size = 64) {
    recurrence::Options options;
    options.implementation = implementation;
    options.chunk_size = chunk_size;
    return options;
  }
  static constexpr bool is_double = sizeof(T) == 8;
  static constexpr double forward_tolerance = is_double ? 1e-10 : 2e-6;
  static constexpr double gradient_tolerance = is_double ? 1e-10 : 1e-5;
};

using AllImplementations = ::testing::Types<
    Under<double, recurrence::Implementation::reference>, Under<float, recurrence::Implementation::reference>,
    Under<double, recurrence::Implementation::portable>, Under<float, recurrence::Implementation::portable>>;

/// Every block of the arena starts as NaN, so that a read of unwritten memory shows in the result.
inline RuntimeOptions poisoned() {
  RuntimeOptions options;
  options.arena.poison = true;
  return options;
}

template <class Implementation>
class Suite : public ::testing::Test {
 protected:
  using T = typename Implementation::type;
  Runtime runtime{poisoned()};

  Values run(const Problem<double>& problem, int chunk_size = 64, Pass pass = Pass::forward_and_backward) {
    return conformance::run<T>(runtime, problem, Implementation::options(chunk_size), pass);
  }
  void expect_close(const Values& values, const Values& expected) {
    for (const auto& [name, reference] : expected) {
      const bool is_forward = name == "o" || name == "final_state";
      ASSERT_TRUE(values.count(name)) << name;
      EXPECT_LE(relative_error(values.at(name), reference),
                is_forward ? Implementation::forward_tolerance : Implementation::gradient_tolerance)
          << name;
    }
    EXPECT_EQ(values.size(), expected.size());
  }
};

}  // namespace deltaport::conformance
