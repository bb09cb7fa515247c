// SPDX-License-Identifier: Apache-2.0
// An outside program that uses one recurrence and nothing else of the library.
#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

#include "deltaport/recurrence/recurrence.hpp"

namespace {

using deltaport::Tensor;

// One token, zero initial state: S = k (beta v)^T, so o = scale (q . k) beta v.
double largest_error() {
  constexpr int key_dim = 16, value_dim = 16;
  constexpr double beta = 0.5, scale = 0.25;
  deltaport::Runtime runtime;
  const auto tensor = [&](const char* name, const deltaport::Shape& shape,
                          const std::vector<double>& values) {
    Tensor<double> x = runtime.allocate<double>(name, shape);
    deltaport::copy_from_host(runtime.compute(), x, values.data());
    return x;
  };
  std::vector<double> q(key_dim), k(key_dim), v(value_dim), o(value_dim);
  double dot = 0.0;
  for (int i = 0; i < key_dim; ++i) {
    q[i] = std::sin(1.0 + i);
    k[i] = std::cos(2.0 + i);
    v[i] = 0.1 * i - 0.7;
    dot += q[i] * k[i];
  }
  deltaport::recurrence::GdnInputs<double> inputs;
  inputs.q = tensor("q", {1, 1, 1, key_dim}, q);
  inputs.k = tensor("k", {1, 1, 1, key_dim}, k);
  inputs.v = tensor("v", {1, 1, 1, value_dim}, v);
  inputs.g = tensor("g", {1, 1, 1}, {-0.1});
  inputs.beta = tensor("beta", {1, 1, 1}, {beta});
  deltaport::recurrence::Options options;
  options.scale = scale;
  const auto result = deltaport::recurrence::gdn_forward(runtime, inputs, options);
  deltaport::copy_to_host(runtime.compute(), o.data(), result.o);
  double error = 0.0;
  for (int i = 0; i < value_dim; ++i) error = std::fmax(error, std::fabs(o[i] - scale * dot * beta * v[i]));
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  Kokkos::ScopeGuard kokkos(argc, argv);
  const double error = largest_error();
  std::printf("largest error %g\n", error);
  return error < 1e-12 ? 0 : 1;
}
