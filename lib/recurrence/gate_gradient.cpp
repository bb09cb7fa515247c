// SPDX-License-Identifier: Apache-2.0
#include "recurrence/gate_gradient.hpp"

#include "deltaport/core/parallel.hpp"

namespace deltaport::recurrence {
namespace {

constexpr std::int64_t block_rows = 64;

/// One team per block of rows; a lane keeps its channels from row to row.
template <class T>
struct BlockGradient {
  using A = Accumulate<T>;
  Extents x;
  GateCurve<A> curve;
  const T* raw;
  const A* dg;
  std::int64_t width;  // heads * channels
  T* d_raw;
  double* by_A_log;  // [blocks, width], or null
  double* by_bias;   // [blocks, width], or null

  KOKKOS_INLINE_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t block = team.league_rank();
    const std::int64_t begin = block * block_rows;
    const std::int64_t end = begin + block_rows < x.rows() ? begin + block_rows : x.rows();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width), [&](std::int64_t c) {
      if (by_A_log != nullptr) by_A_log[block * width + c] = 0.0;
      if (by_bias != nullptr) by_bias[block * width + c] = 0.0;
    });
    for (std::int64_t row = begin; row < end; ++row) {
      const bool covered = x.covers(row);
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width), [&](std::int64_t c) {
        const std::int64_t i = row * width + c;
        if (!covered) {
          d_raw[i] = T(0);
          return;
        }
        const auto point = curve.at(static_cast<A>(raw[i]), c);
        const A slope = dg[i] * point.by_raw;
        d_raw[i] = static_cast<T>(slope);
        if (by_A_log != nullptr) by_A_log[block * width + c] += static_cast<double>(dg[i] * point.by_A_log);
        if (by_bias != nullptr) by_bias[block * width + c] += static_cast<double>(slope);
      });
    }
  }
};

/// sum[i] = over all blocks, then over `columns` neighbouring channels
template <class A>
struct SumBlocks {
  const double* partial;  // [blocks, width]
  std::int64_t blocks, width;
  int columns;
  A* sum;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    double total = 0;
    for (std::int64_t c = i * columns; c < (i + 1) * columns; ++c)
      for (std::int64_t b = 0; b < blocks; ++b) total += partial[b * width + c];
    sum[i] = static_cast<A>(total);
  }
};

}  // namespace

template <class T>
GateGradient<T> gate_gradient(Runtime& runtime, const Extents& x, const GateCurve<Accumulate<T>>& curve,
                              const Tensor<T>& raw, const Tensor<Accumulate<T>>& dg) {
  using A = Accumulate<T>;
  const std::int64_t width = raw.size() / x.rows();
  const std::int64_t blocks = (x.rows() + block_rows - 1) / block_rows;
  Tensor<double> by_A_log, by_bias;
  if (curve.A_log != nullptr) by_A_log = runtime.allocate<double>("gate partials", {blocks, width});
  if (curve.dt_bias != nullptr) by_bias = runtime.allocate<double>("gate partials", {blocks, width});
  GateGradient<T> out;
  out.d_raw = runtime.allocate<T>("recurrence d_raw_gate", raw.shape());
  Kokkos::parallel_for(
      "deltaport: recurrence gate gradient",
      TeamPolicy(runtime.compute(), static_cast<int>(blocks), runs_on_host ? 1 : 8, runs_on_host ? 1 : 32),
      BlockGradient<T>{x, curve, raw.data(), dg.data(), width, out.d_raw.data(), by_A_log.data(),
                       by_bias.data()});
  const auto sum = [&](const Tensor<double>& partial, const char* name, int columns) {
    auto total = runtime.allocate<A>(name, {width / columns});
    for_each_index(runtime.compute(), "deltaport: recurrence gate sums", width / columns,
                   SumBlocks<A>{partial.data(), blocks, width, columns, total.data()});
    return total;
  };
  if (by_A_log.defined()) out.dA_log = sum(by_A_log, "recurrence dA_log", curve.channels);
  if (by_bias.defined()) out.ddt_bias = sum(by_bias, "recurrence ddt_bias", 1);
  return out;
}

#define DELTAPORT_INSTANTIATE(T)                                                                       \
  template GateGradient<T> gate_gradient<T>(Runtime&, const Extents&, const GateCurve<Accumulate<T>>&, \
                                            const Tensor<T>&, const Tensor<Accumulate<T>>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence
