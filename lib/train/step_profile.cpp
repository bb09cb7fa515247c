// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/step_profile.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

double flops(const GemmCall& call) {
  return 2.0 * static_cast<double>(call.m) * static_cast<double>(call.n) * static_cast<double>(call.k);
}

// Zeros would flatter: they save power, and chips run faster on them.
template <class T>
struct FillUniform {
  T* out;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const double value = uniform(1, 0, static_cast<std::uint64_t>(i)) - 0.5;
    out[i] = static_cast<T>(static_cast<Accumulate<T>>(value));
  }
};

template <class T>
Tensor<T> random_operand(Runtime& runtime, std::int64_t size) {
  auto x = runtime.allocate<T>("bench operand", Shape{size});
  for_each_index(runtime.compute(), "deltaport: bench operand", size, FillUniform<T>{x.data()});
  return x;
}

// Operands as large as the step's own, so that the product meets the same caches and memory.
template <class T, class C>
double time_alone(Runtime& runtime, const GemmCall& call) {
  const std::int64_t lda = call.trans_a == Transpose::yes ? call.m : call.k;
  const std::int64_t ldb = call.trans_b == Transpose::yes ? call.k : call.n;
  const auto a = random_operand<T>(runtime, call.m * call.k);
  const auto b = random_operand<T>(runtime, call.k * call.n);
  const auto c = random_operand<C>(runtime, call.m * call.n);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    runtime.fence("deltaport: bench gemm");
    const auto start = Clock::now();
    gemm<T>(runtime, call.trans_a, call.trans_b, call.m, call.n, call.k, 1, a.data(), lda, b.data(), ldb, 0,
            c.data(), call.n);
    runtime.fence("deltaport: bench gemm");
    if (i >= 2) times.push_back(seconds_since(start));
  }
  return median(times);
}

double time_alone(Runtime& runtime, const GemmCall& call) {
  if (call.operands == Dtype::f64) return time_alone<double, double>(runtime, call);
  if (call.operands == Dtype::f32) return time_alone<float, float>(runtime, call);
  return call.output == Dtype::f32 ? time_alone<bfloat16, float>(runtime, call)
                                   : time_alone<bfloat16, bfloat16>(runtime, call);
}

std::vector<GemmProfile> profile_gemms(Runtime& runtime, const std::vector<GemmCall>& calls) {
  std::map<GemmCall, std::int64_t> counts;
  for (const GemmCall& call : calls) ++counts[call];
  std::vector<GemmProfile> profiles;
  for (const auto& [call, count] : counts) {
    profiles.push_back({call, count, time_alone(runtime, call)});
  }
  std::sort(profiles.begin(), profiles.end(), [](const GemmProfile& x, const GemmProfile& y) {
    return x.alone_seconds * static_cast<double>(x.count) > y.alone_seconds * static_cast<double>(y.count);
  });
  return profiles;
}

void append(std::string& out, const char* format, auto... values) {
  char line[256];
  std::snprintf(line, sizeof line, format, values...);
  out += line;
}

}  // namespace

double StepProfile::share(Work kind) const {
  return timed_step_seconds > 0.0 ? seconds[static_cast<std::size_t>(kind)] / timed_step_seconds : 0.0;
}

double StepProfile::gemm_flops() const {
  return std::accumulate(gemms.begin(), gemms.end(), 0.0, [](double sum, const GemmProfile& g) {
    return sum + flops(g.call) * static_cast<double>(g.count);
  });
}

double StepProfile::gemm_alone_seconds() const {
  return std::accumulate(gemms.begin(), gemms.end(), 0.0, [](double sum, const GemmProfile& g) {
    return sum + g.alone_seconds * static_cast<double>(g.count);
  });
}

double StepProfile::gemm_efficiency() const {
  const double inside = seconds[static_cast<std::size_t>(Work::gemm)];
  return inside > 0.0 ? gemm_alone_seconds() / inside : 0.0;
}

StepProfile profile_steps(AnyTrainingRun& run, const Communicator& communicator, std::int64_t warmup,
                          std::int64_t steps) {
  DELTAPORT_VALIDATE(warmup >= 0 && steps >= 1, ConfigError,
                     "bench needs --warmup >= 0 and --steps >= 1, got ", warmup, " and ", steps);
  WorkTimer& timer = run.runtime().timer();
  std::int64_t step = 0;
  for (std::int64_t i = 0; i < warmup; ++i) run.step(step++);

  StepProfile profile;
  std::vector<double> plain, timed;
  std::array<std::vector<double>, work_kinds> by_kind;
  std::vector<GemmCall> calls;
  for (std::int64_t i = 0; i < steps; ++i) {
    communicator.barrier();
    auto start = Clock::now();
    profile.tokens_per_step = run.step(step++).tokens;
    plain.push_back(seconds_since(start));

    communicator.barrier();
    timer.enable(true);
    if (i == 0) set_gemm_log(&calls);
    start = Clock::now();
    run.step(step++);
    timed.push_back(seconds_since(start));
    set_gemm_log(nullptr);
    const auto seconds = timer.seconds();
    timer.enable(false);
    for (std::size_t k = 0; k < work_kinds; ++k) by_kind[k].push_back(seconds[k]);
  }
  profile.step_seconds = median(plain);
  profile.timed_step_seconds = median(timed);
  for (std::size_t k = 0; k < work_kinds; ++k) profile.seconds[k] = median(by_kind[k]);
  profile.gemms = profile_gemms(run.runtime(), calls);
  return profile;
}

std::string table(const StepProfile& profile) {
  std::string out;
  append(out, "step %.1f ms (%.1f ms with the timer's fences), %.0f tokens/s\n\n", profile.step_seconds * 1e3,
         profile.timed_step_seconds * 1e3,
         static_cast<double>(profile.tokens_per_step) / profile.step_seconds);
  append(out, "  %-14s %10s %7s\n", "work", "ms", "share");
  std::array<Work, work_kinds> order;
  for (std::size_t k = 0; k < work_kinds; ++k) order[k] = static_cast<Work>(k);
  std::stable_sort(order.begin(), order.end(),
                   [&](Work a, Work b) { return profile.share(a) > profile.share(b); });
  for (const Work kind : order)
    append(out, "  %-14s %10.2f %6.1f%%\n", std::string(name_of(kind)).c_str(),
           profile.seconds[static_cast<std::size_t>(kind)] * 1e3, 100.0 * profile.share(kind));
  append(out, "\n  gemm + recurrence: %.1f%% of the step\n",
         100.0 * (profile.share(Work::gemm) + profile.share(Work::recurrence)));
  append(out,
         "  products: %.2f GFLOP in the step at %.1f GFLOP/s; alone %.1f GFLOP/s; in the step %.0f%% of "
         "alone\n\n",
         profile.gemm_flops() * 1e-9,
         profile.gemm_flops() * 1e-9 / profile.seconds[static_cast<std::size_t>(Work::gemm)],
         profile.gemm_flops() * 1e-9 / profile.gemm_alone_seconds(), 100.0 * profile.gemm_efficiency());
  append(out, "  %-22s %6s %-19s %8s %12s %10s\n", "product (m x n x k)", "op", "type", "per step",
         "ms alone", "GFLOP/s");
  for (const GemmProfile& g : profile.gemms) {
    const std::string shape = concat(g.call.m, " x ", g.call.n, " x ", g.call.k);
    const std::string op = std::string(g.call.trans_a == Transpose::yes ? "T" : "N") +
                           (g.call.trans_b == Transpose::yes ? "T" : "N");
    std::string type(name_of(g.call.operands));
    if (g.call.output != g.call.operands) type += " -> " + std::string(name_of(g.call.output));
    append(out, "  %-22s %6s %-19s %8lld %12.3f %10.1f\n", shape.c_str(), op.c_str(), type.c_str(),
           static_cast<long long>(g.count), g.alone_seconds * 1e3, flops(g.call) * 1e-9 / g.alone_seconds);
  }
  return out;
}

}  // namespace deltaport
