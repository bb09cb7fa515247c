// SPDX-License-Identifier: Apache-2.0
#include "deltaport/recurrence/ceiling.hpp"

#include <algorithm>
#include <vector>

#include "recurrence/host/dispatch.hpp"

namespace deltaport::recurrence {
namespace {

constexpr int most_lanes = 16;

struct MultiplyAdds {
  const host::Kernels* kernels;
  std::int64_t rounds;
  float* sinks;
  double* operations;
  void operator()(std::int64_t thread) const {
    float* sink = sinks + thread * 2 * most_lanes;
    for (int i = 0; i < most_lanes; ++i) {
      sink[i] = 0.5f;  // the factor, so that values stay bounded and normal
      sink[most_lanes + i] = 1.0f;
    }
    operations[thread] = kernels->multiply_adds(rounds, sink);
  }
};

}  // namespace

double run_multiply_adds(Runtime& runtime, double seconds) {
  const ExecutionSpace& exec = runtime.compute();
  const auto threads = static_cast<std::int64_t>(exec.concurrency());
  std::vector<float> sinks(static_cast<std::size_t>(threads) * 2 * most_lanes);
  std::vector<double> operations(static_cast<std::size_t>(threads));
  // About 6 cycles for a round of 12, at 3 GHz.
  const auto rounds = std::max<std::int64_t>(static_cast<std::int64_t>(seconds * 0.5e9), 1);
  using Policy =
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Static>, Kokkos::IndexType<std::int64_t>>;
  Kokkos::parallel_for("deltaport: multiply-adds", Policy(exec, 0, threads),
                       MultiplyAdds{&host::kernels(), rounds, sinks.data(), operations.data()});
  exec.fence("deltaport: multiply-adds");
  double sum = 0;
  for (double each : operations) sum += each;
  return sum;
}

}  // namespace deltaport::recurrence
