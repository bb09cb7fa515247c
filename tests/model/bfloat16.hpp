// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>

#include "model/gradient_check.hpp"

/// Operators in bfloat16 against the same operators in double, on the same numbers.
namespace deltaport::testing {

/// Largest relative error of rounding to bfloat16, half a unit in the last of its 8 binary digits.
inline constexpr double half_unit = 0x1p-8;
/// Room for float32 arithmetic in between, relative to the largest magnitude of a result.
inline constexpr double float_room = 2e-6;

inline std::vector<double> widened(const std::vector<bfloat16>& x) {
  std::vector<double> out;
  for (const bfloat16 value : x) out.push_back(static_cast<double>(widen(value)));
  return out;
}
inline std::vector<double> widened(const std::vector<float>& x) {
  return {x.begin(), x.end()};
}
inline std::vector<double> widened(const std::vector<double>& x) {
  return x;
}

/// The same numbers as bfloat16 and as double.
struct Pair {
  Tensor<bfloat16> half;
  Tensor<double> exact;
};
inline Pair random_pair(Runtime& runtime, const Shape& shape, std::uint64_t seed, double scale = 1.0) {
  const auto values = random_values<bfloat16>(shape.size(), seed, scale);
  return {from_vector(runtime.compute(), runtime.arena(), "half", shape, values),
          from_vector(runtime.compute(), runtime.arena(), "exact", shape, widened(values))};
}
/// The same numbers as float and as double, for what bfloat16 operators take in float32.
struct WidePair {
  Tensor<float> single;
  Tensor<double> exact;
};
inline WidePair random_wide_pair(Runtime& runtime, const Shape& shape, std::uint64_t seed,
                                 double scale = 1.0) {
  const auto values = random_values<float>(shape.size(), seed, scale);
  return {from_vector(runtime.compute(), runtime.arena(), "single", shape, values),
          from_vector(runtime.compute(), runtime.arena(), "exact", shape, widened(values))};
}
/// A float tensor in double.
inline Tensor<double> in_double(Runtime& runtime, const Tensor<float>& x) {
  return from_vector(runtime.compute(), runtime.arena(), "exact", x.shape(), widened(host(runtime, x)));
}
inline Tensor<double> in_double(Runtime& runtime, const Tensor<bfloat16>& x) {
  return from_vector(runtime.compute(), runtime.arena(), "exact", x.shape(), widened(host(runtime, x)));
}

inline double largest(const std::vector<double>& x) {
  double most = 0.0;
  for (const double value : x) most = std::max(most, std::abs(value));
  return most;
}

/// |got - want| <= bound(i) for every element.
template <class X>
void expect_within(const std::string& name, const std::vector<X>& got, const std::vector<double>& want,
                   const std::function<double(std::size_t)>& bound) {
  const std::vector<double> values = widened(got);
  ASSERT_EQ(values.size(), want.size()) << name;
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::abs(values[i] - want[i]), bound(i))
        << name << "[" << i << "] is " << values[i] << ", not " << want[i];
}

/// `roundings` roundings to bfloat16 on the way, each of the whole value.
inline void expect_rounded(const std::string& name, const std::vector<bfloat16>& got,
                           const std::vector<double>& want, int roundings = 1) {
  const double room = float_room * largest(want);
  expect_within(name, got, want,
                [&](std::size_t i) { return roundings * half_unit * std::abs(want[i]) * 1.01 + room; });
}
/// No rounding to bfloat16 on the way: sums and what stays float32.
inline void expect_unrounded(const std::string& name, const std::vector<float>& got,
                             const std::vector<double>& want, double room = 1e-5) {
  expect_within(name, got, want, [&](std::size_t) { return room * largest(want); });
}

/// Euclidean norm of the difference over that of `want`.
template <class X>
double norm_error(const std::vector<X>& got, const std::vector<double>& want) {
  const std::vector<double> values = widened(got);
  if (values.size() != want.size()) return INFINITY;
  double difference = 0.0, total = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += (values[i] - want[i]) * (values[i] - want[i]);
    total += want[i] * want[i];
  }
  return std::sqrt(difference / std::max(total, 1e-300));
}

/// Gives `to` the numbers that a bfloat16 model computes with: rounded weights, and exact parameters as they
/// are.
template <class To>
void copy_parameters(Runtime& runtime, const ParameterSet<bfloat16>& from, const ParameterSet<To>& to) {
  for (std::size_t i = 0; i < from.infos().size(); ++i) {
    const int index = static_cast<int>(i);
    const auto numbers = from.infos()[i].kept == Kept::exact ? widened(host(runtime, from.master(index)))
                                                             : widened(host(runtime, from.value(index)));
    std::vector<To> values;
    for (const double number : numbers) values.push_back(static_cast<To>(number));
    copy_from_host(runtime.compute(), to.master(index), values.data());
  }
}

}  // namespace deltaport::testing
