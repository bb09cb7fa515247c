// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "deltaport/core/context.hpp"
#include "deltaport/core/rng.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport::testing {

/// `count` draws of N(0, scale^2); float tests get the rounded values of the double tests.
template <class T>
std::vector<T> random_values(std::int64_t count, std::uint64_t seed, double scale = 1.0) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] =
        static_cast<T>(scale * normal(seed, 17, static_cast<std::uint64_t>(i)));
  return values;
}

template <class T>
Tensor<T> random_tensor(Runtime& runtime, const Shape& shape, std::uint64_t seed, double scale = 1.0) {
  return from_vector(runtime.compute(), runtime.arena(), "random", shape,
                     random_values<T>(shape.size(), seed, scale));
}

/// Gives every parameter N(0, scale^2) values and leaves padding zero.
template <class T>
void randomise(Runtime& runtime, const ParameterSet<T>& parameters, std::uint64_t seed, double scale) {
  for (std::size_t i = 0; i < parameters.infos().size(); ++i) {
    const ParameterInfo& info = parameters.infos()[i];
    const auto values = random_values<Accumulate<T>>(info.shape.size(), seed ^ stream_of(info.name), scale);
    copy_from_host(runtime.compute(), parameters.master(static_cast<int>(i)), values.data());
  }
  parameters.round_values(runtime);
}

template <class T>
std::vector<T> host(Runtime& runtime, const Tensor<T>& x) {
  return to_vector(runtime.compute(), x);
}

/// Equal to the last bit (NaN payloads and signs of zero included).
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Largest difference over the largest magnitude of `want`.
template <class A, class B>
double relative_error(const std::vector<A>& got, const std::vector<B>& want) {
  if (got.size() != want.size()) return INFINITY;
  double difference = 0.0, magnitude = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double delta = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    difference = std::isnan(delta) ? INFINITY : std::max(difference, delta);
    magnitude = std::max(magnitude, std::abs(static_cast<double>(want[i])));
  }
  return difference / std::max(magnitude, 1e-30);
}

/// A layer seen as y = f(inputs, parameters).
struct GradientCase {
  struct Input {
    std::string name;
    Tensor<double> value;
  };
  std::vector<Input> inputs;
  const ParameterSet<double>* parameters = nullptr;  ///< may be null
  std::function<Tensor<double>(Context&)> forward;
  /// Gradients of the inputs, in their order; adds into the parameters' gradients.
  std::function<std::vector<Tensor<double>>(Context&, const Tensor<double>& dy)> backward;
};

struct GradientCheckOptions {
  double tolerance = 1e-7;        ///< on the largest error of one tensor over its largest gradient
  double step = 2e-4;             ///< of the fourth-order central difference
  std::int64_t max_entries = 24;  ///< elements tried per tensor, evenly spread (all if fewer)
  std::uint64_t seed = 99;        ///< of the cotangent
};

/// Compares the backward of a case with central differences of sum(cotangent * y), for every input and
/// parameter.
class GradientChecker {
 public:
  GradientChecker(Runtime& runtime, const GradientCase& layer, GradientCheckOptions options = {})
      : runtime_(runtime), layer_(layer), options_(options) {}

  void run() {
    SavedTensors saved;
    Context context{runtime_, saved, Mode::train};
    const Tensor<double> y = layer_.forward(context);
    cotangent_ = random_values<double>(y.size(), options_.seed);
    const Tensor<double> dy =
        from_vector(runtime_.compute(), runtime_.arena(), "cotangent", y.shape(), cotangent_);
    if (layer_.parameters != nullptr) set_zero(runtime_.compute(), layer_.parameters->flat_gradients());
    const std::vector<Tensor<double>> gradients = layer_.backward(context, dy);
    EXPECT_TRUE(saved.empty()) << saved.size() << " saved tensors were not taken back";
    ASSERT_EQ(gradients.size(), layer_.inputs.size());
    for (std::size_t i = 0; i < gradients.size(); ++i)
      check("input " + layer_.inputs[i].name, layer_.inputs[i].value, gradients[i]);
    if (layer_.parameters == nullptr) return;
    for (std::size_t i = 0; i < layer_.parameters->infos().size(); ++i) {
      const int index = static_cast<int>(i);
      check(layer_.parameters->infos()[i].name, layer_.parameters->value(index),
            layer_.parameters->gradient(index));
    }
  }

 private:
  std::vector<double> outputs() {
    SavedTensors saved;
    Context context{runtime_, saved, Mode::evaluate};
    return host(runtime_, layer_.forward(context));
  }

  void check(const std::string& name, const Tensor<double>& value, const Tensor<double>& gradient) {
    ASSERT_EQ(gradient.size(), value.size()) << name;
    const std::vector<double> analytic = host(runtime_, gradient);
    const std::vector<double> original = host(runtime_, value);
    const std::int64_t count = std::min<std::int64_t>(value.size(), options_.max_entries);
    double magnitude = 1e-6, worst = 0.0;
    for (double g : analytic) magnitude = std::max(magnitude, std::abs(g));
    std::int64_t worst_entry = 0;
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t entry =
          count == value.size() ? n : n * (value.size() - 1) / std::max<std::int64_t>(count - 1, 1);
      const double numeric = derivative(value, original, entry);
      double error = std::abs(numeric - analytic[static_cast<std::size_t>(entry)]) / magnitude;
      if (std::isnan(error)) error = INFINITY;
      if (error > worst) {
        worst = error;
        worst_entry = entry;
      }
    }
    copy_from_host(runtime_.compute(), value, original.data());
    EXPECT_LE(worst, options_.tolerance) << name << ": gradient of element " << worst_entry << " is "
                                         << analytic[static_cast<std::size_t>(worst_entry)];
  }

  /// (8 (f(+h) - f(-h)) - (f(+2h) - f(-2h))) / 12 h, differences taken per output element before they are
  /// summed.
  double derivative(const Tensor<double>& value, const std::vector<double>& original, std::int64_t entry) {
    const double h = options_.step * std::max(1.0, std::abs(original[static_cast<std::size_t>(entry)]));
    std::vector<double> shifted = original;
    std::vector<std::vector<double>> y;
    for (double offset : {h, -h, 2 * h, -2 * h}) {
      shifted[static_cast<std::size_t>(entry)] = original[static_cast<std::size_t>(entry)] + offset;
      copy_from_host(runtime_.compute(), value, shifted.data());
      y.push_back(outputs());
    }
    double sum = 0.0;
    for (std::size_t i = 0; i < cotangent_.size(); ++i)
      sum += cotangent_[i] * (8.0 * (y[0][i] - y[1][i]) - (y[2][i] - y[3][i]));
    return sum / (12.0 * h);
  }

  Runtime& runtime_;
  const GradientCase& layer_;
  GradientCheckOptions options_;
  std::vector<double> cotangent_;
};

inline void check_gradients(Runtime& runtime, const GradientCase& layer, GradientCheckOptions options = {}) {
  GradientChecker(runtime, layer, options).run();
}

}  // namespace deltaport::testing
