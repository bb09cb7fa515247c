// SPDX-License-Identifier: Apache-2.0
#include "recurrence/gates.hpp"

#include "deltaport/core/parallel.hpp"
#include "recurrence/gate_curve.hpp"

namespace deltaport::recurrence {
namespace {

constexpr std::int64_t block_rows = 64;

/// One token: all channels of all heads.
template <class T, class Curve>
struct GateForward {
  using A = Accumulate<T>;
  Curve curve;
  const T* raw;
  int width;
  A* g;
  KOKKOS_INLINE_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t at = std::int64_t{team.league_rank()} * width;
    const T* in = raw + at;
    A* out = g + at;
    const Curve gate = curve;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width),
                         [=](int c) { out[c] = gate.at(static_cast<A>(in[c]), c).g; });
  }
};

/// One block of rows; a lane keeps its channels from row to row.
template <class T, class Curve>
struct GateBackward {
  using A = Accumulate<T>;
  Extents x;
  Curve curve;
  const T* raw;
  const A* dg;
  int width;
  T* d_raw;
  double* by_A_log;  // [blocks, width]
  double* by_bias;   // [blocks, width]

  KOKKOS_INLINE_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t block = team.league_rank();
    const std::int64_t begin = block * block_rows;
    const std::int64_t end = begin + block_rows < x.rows() ? begin + block_rows : x.rows();
    double* log_sum = by_A_log + block * width;
    double* bias_sum = by_bias + block * width;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width),
                         [=](int c) { log_sum[c] = bias_sum[c] = 0.0; });
    for (std::int64_t row = begin; row < end; ++row)
      if (x.covers(row))
        add_row(team, row, log_sum, bias_sum);
      else
        clear_row(team, row);
  }

  KOKKOS_INLINE_FUNCTION void add_row(const TeamMember& team, std::int64_t row, double* log_sum,
                                      double* bias_sum) const {
    const Curve gate = curve;
    const T* in = raw + row * width;
    const A* d_gate = dg + row * width;
    T* out = d_raw + row * width;
    // Two loops: compilers check only so many pointers for overlap before they use vectors.
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width), [=](int c) {
      const A slope = d_gate[c] * gate.at(static_cast<A>(in[c]), c).by_raw;
      out[c] = static_cast<T>(slope);
      bias_sum[c] += static_cast<double>(slope);
    });
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width), [=](int c) {
      log_sum[c] += static_cast<double>(d_gate[c] * gate.at(static_cast<A>(in[c]), c).by_A_log);
    });
  }
  KOKKOS_INLINE_FUNCTION void clear_row(const TeamMember& team, std::int64_t row) const {
    T* out = d_raw + row * width;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, width), [=](int c) { out[c] = T(0); });
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

/// out[i] = x[i / times], or 0
template <class A>
struct RepeatEach {
  const A* x;
  int times;
  A* out;
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t i) const {
    out[i] = x == nullptr ? A(0) : x[i / times];
  }
};

/// The parameters, one per channel of all heads.
template <class T>
struct Parameters {
  using A = Accumulate<T>;
  Tensor<A> A_log, dt_bias;
  A lower_bound;

  Parameters(Runtime& runtime, const RawGate<T>& gate, const Options& options, std::int64_t width)
      : A_log(per_channel(runtime, gate.A_log, gate.channels, width)),
        dt_bias(per_channel(runtime, gate.dt_bias, 1, width)),
        lower_bound(static_cast<A>(options.gate_lower_bound)) {}

  /// f(curve)
  template <class F>
  void with_curve(GateActivation activation, const F& f) const {
    if (activation == GateActivation::softplus)
      f(GateCurve<A, GateActivation::softplus>{A_log.data(), dt_bias.data(), lower_bound});
    else
      f(GateCurve<A, GateActivation::lower_bounded>{A_log.data(), dt_bias.data(), lower_bound});
  }

 private:
  static Tensor<A> per_channel(Runtime& runtime, const Tensor<A>& x, int times, std::int64_t width) {
    if (x.defined() && times == 1) return x;
    auto out = runtime.allocate<A>("recurrence gate parameter", {width});
    for_each_index(runtime.compute(), "deltaport: recurrence gate parameter", width,
                   RepeatEach<A>{x.data(), times, out.data()});
    return out;
  }
};

}  // namespace

template <class T>
Tensor<Accumulate<T>> gate_forward(Runtime& runtime, const Extents& x, const RawGate<T>& gate,
                                   const Options& options) {
  const auto width = static_cast<int>(gate.raw.size() / x.rows());
  auto g = runtime.allocate<Accumulate<T>>("recurrence g", gate.raw.shape());
  const Parameters<T> parameters(runtime, gate, options, width);
  parameters.with_curve(options.gate, [&](auto curve) {
    for_each_row(runtime.compute(), "deltaport: recurrence gate", x.rows(),
                 GateForward<T, decltype(curve)>{curve, gate.raw.data(), width, g.data()});
  });
  return g;
}

template <class T>
GateGradients<T> gate_backward(Runtime& runtime, const Extents& x, const RawGate<T>& gate,
                               const Options& options, const Tensor<Accumulate<T>>& dg) {
  using A = Accumulate<T>;
  const auto width = static_cast<int>(gate.raw.size() / x.rows());
  const std::int64_t blocks = (x.rows() + block_rows - 1) / block_rows;
  const auto by_A_log = runtime.allocate<double>("recurrence gate sums", {blocks, width});
  const auto by_bias = runtime.allocate<double>("recurrence gate sums", {blocks, width});
  GateGradients<T> out;
  out.d_raw = runtime.allocate<T>("recurrence d_raw_gate", gate.raw.shape());
  const Parameters<T> parameters(runtime, gate, options, width);
  parameters.with_curve(options.gate, [&](auto curve) {
    enqueue_kernel(
        "deltaport: recurrence gate gradient",
        TeamPolicy(runtime.compute(), static_cast<int>(blocks), runs_on_host ? 1 : 8, runs_on_host ? 1 : 32),
        GateBackward<T, decltype(curve)>{x, curve, gate.raw.data(), dg.data(), width, out.d_raw.data(),
                                         by_A_log.data(), by_bias.data()});
  });
  const auto sum = [&](const Tensor<double>& partial, const Tensor<A>& like, int columns) {
    if (!like.defined()) return Tensor<A>{};
    auto total = runtime.allocate<A>("recurrence gate parameter gradient", like.shape());
    for_each_index(runtime.compute(), "deltaport: recurrence gate sums", like.size(),
                   SumBlocks<A>{partial.data(), blocks, width, columns, total.data()});
    return total;
  };
  out.dA_log = sum(by_A_log, gate.A_log, gate.channels);
  out.ddt_bias = sum(by_bias, gate.dt_bias, 1);
  return out;
}

#define DELTAPORT_INSTANTIATE(T)                                                                          \
  template Tensor<Accumulate<T>> gate_forward<T>(Runtime&, const Extents&, const RawGate<T>&,             \
                                                 const Options&);                                         \
  template GateGradients<T> gate_backward<T>(Runtime&, const Extents&, const RawGate<T>&, const Options&, \
                                             const Tensor<Accumulate<T>>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport::recurrence
