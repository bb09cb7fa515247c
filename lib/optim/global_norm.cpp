// SPDX-License-Identifier: Apache-2.0
#include "deltaport/optim/global_norm.hpp"

#include <algorithm>

#include "deltaport/core/parallel.hpp"

namespace deltaport {

namespace {

constexpr std::int64_t block_elements = 64;
constexpr std::int64_t max_partials = 1024;

// Sum of squares of elements [begin, end) in eight interleaved sums, which compilers turn into vector
// instructions.
template <class T>
KOKKOS_INLINE_FUNCTION double host_square_sum(const T* x, std::int64_t begin, std::int64_t end) {
  constexpr int host_lanes = 8;
  double lanes[host_lanes] = {};
  std::int64_t i = begin;
  for (; i + host_lanes <= end; i += host_lanes)
    for (int lane = 0; lane < host_lanes; ++lane) {
      const double value = static_cast<double>(x[i + lane]);
      lanes[lane] += value * value;
    }
  double sum = 0.0;
  for (int lane = 0; lane < host_lanes; ++lane) sum += lanes[lane];
  for (; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

// Team p sums its fixed share of the blocks.
template <class T>
struct PartialSquareSums {
  const T* x;
  std::int64_t n;
  std::int64_t blocks_per_partial;
  double* partials;

  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t p = team.league_rank();
    const std::int64_t share = blocks_per_partial * block_elements;
    const std::int64_t begin = p * share;
    const std::int64_t end = begin + share < n ? begin + share : n;
    double sum = 0.0;
    if constexpr (runs_on_host) {
      sum = host_square_sum(x, begin, end);
    } else {
      Kokkos::parallel_reduce(
          Kokkos::TeamThreadRange(team, begin, end),
          [&](std::int64_t i, double& local) {
            const double value = static_cast<double>(x[i]);
            local += value * value;
          },
          sum);
    }
    Kokkos::single(Kokkos::PerTeam(team), [&]() { partials[p] = sum; });
  }
};

struct FinishNorm {
  const double* partials;
  std::int64_t count;
  double* norm;

  KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    double sum = 0.0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(team, count), [&](std::int64_t i, double& local) { local += partials[i]; },
        sum);
    Kokkos::single(Kokkos::PerTeam(team), [&]() { norm[0] = Kokkos::sqrt(sum); });
  }
};

}  // namespace

template <class T>
Tensor<double> global_norm(Runtime& runtime, const Tensor<T>& gradients) {
  DELTAPORT_VALIDATE(gradients.defined(), ShapeError, "global_norm: gradients are not allocated");
  WorkScope scope(runtime, Work::optimizer, "deltaport: global norm");
  const std::int64_t n = gradients.size();
  const std::int64_t blocks = (n + block_elements - 1) / block_elements;
  const std::int64_t blocks_per_partial =
      std::max<std::int64_t>(1, (blocks + max_partials - 1) / max_partials);
  const std::int64_t count = (blocks + blocks_per_partial - 1) / blocks_per_partial;
  Tensor<double> norm = runtime.allocate<double>("gradient norm", Shape{1});
  Tensor<double> partials =
      runtime.allocate<double>("gradient norm partials", Shape{std::max<std::int64_t>(count, 1)});
  if (count > 0)
    enqueue_kernel("deltaport: gradient square sums",
                   TeamPolicy(runtime.compute(), static_cast<int>(count), runs_on_host ? 1 : 256, 1),
                   PartialSquareSums<T>{gradients.data(), n, blocks_per_partial, partials.data()});
  for_each_row(runtime.compute(), "deltaport: gradient norm", 1,
               FinishNorm{partials.data(), count, norm.data()});
  return norm;
}

template Tensor<double> global_norm<float>(Runtime&, const Tensor<float>&);
template Tensor<double> global_norm<double>(Runtime&, const Tensor<double>&);

}  // namespace deltaport
