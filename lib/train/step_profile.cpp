// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/step_profile.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/process_age.hpp"
#include "deltaport/core/rng.hpp"
#include "train/number_format.hpp"

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

std::string name_of(const GemmCall& call) {
  return concat("product of ", call.m, " x ", call.n, " x ", call.k, " in ",
                deltaport::name_of(call.operands));
}

// What the step's own products reach may be far below what the chip can do; a large square one is closer.
PeakRate measured_peak(Runtime& runtime, const std::vector<GemmProfile>& gemms, Dtype dtype) {
  constexpr std::int64_t edge = runs_on_host ? 1024 : 8192;
  std::vector<GemmProfile> all = gemms;
  const GemmCall large{Transpose::no, Transpose::yes, edge, edge, edge, dtype, dtype};
  try {
    all.push_back({large, 0, time_alone(runtime, large)});
  } catch (const OutOfMemory&) {  // beside the run; the step's products are left
  }
  PeakRate peak{0.0, "no product was measured"};
  for (const GemmProfile& each : all) {
    const double rate = flops(each.call) / each.alone_seconds;
    if (rate > peak.flops) peak = {rate, "the fastest " + name_of(each.call) + ", alone, in this run"};
  }
  return peak;
}

ModelFlops step_flops(const AnyTrainingRun& run, std::int64_t tokens) {
  ModelFlops flops = training_flops_per_token(run.config().model, run.config().data.seq_len);
  const auto count = static_cast<double>(tokens);
  flops.products *= count;
  flops.attention *= count;
  flops.recurrence *= count;
  return flops;
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

double StepProfile::utilisation() const {
  const double most = step_seconds * peak.flops;
  return most > 0.0 ? model_flops.total() / most : 0.0;
}

StepProfile profile_steps(AnyTrainingRun& run, const Communicator& communicator, std::int64_t warmup,
                          std::int64_t steps, const std::optional<PeakRate>& peak) {
  DELTAPORT_VALIDATE(warmup >= 0 && steps >= 1, ConfigError,
                     "bench needs --warmup >= 0 and --steps >= 1, got ", warmup, " and ", steps);
  WorkTimer& timer = run.runtime().timer();
  std::int64_t step = 0;
  StepProfile profile;
  const auto next_step = [&] {
    const StepResult result = run.step(step++);
    if (step == 1) profile.first_step_seconds = process_age_seconds();
    return result;
  };
  for (std::int64_t i = 0; i < warmup; ++i) next_step();

  std::vector<double> plain, timed;
  std::array<std::vector<double>, work_kinds> by_kind;
  std::vector<GemmCall> calls;
  for (std::int64_t i = 0; i < steps; ++i) {
    communicator.barrier();
    run.runtime().arena().reset_peak();
    auto start = Clock::now();
    profile.tokens_per_step = next_step().tokens;
    plain.push_back(seconds_since(start));
    if (i == 0) {  // the timer's steps are eager, beside the memory of captured graphs
      const ArenaStats memory = run.runtime().arena().stats();
      profile.allocated_peak = memory.allocated_peak;
      profile.reserved_peak = memory.reserved;
    }

    communicator.barrier();
    timer.enable(true);
    if (i == 0) set_gemm_log(&calls);
    start = Clock::now();
    next_step();
    timed.push_back(seconds_since(start));
    set_gemm_log(nullptr);
    const auto seconds = timer.seconds();
    timer.enable(false);
    for (std::size_t k = 0; k < work_kinds; ++k) by_kind[k].push_back(seconds[k]);
  }
  profile.step_seconds = median(plain);
  profile.timed_step_seconds = median(timed);
  for (std::size_t k = 0; k < work_kinds; ++k) profile.seconds[k] = median(by_kind[k]);
  const std::string& source = run.config().model.init_from;
  profile.weights = source == "none" ? "random weights" : "weights from " + source;
  profile.model_flops = step_flops(run, profile.tokens_per_step / communicator.size());
  profile.gemms = profile_gemms(run.runtime(), calls);
  profile.peak = peak ? *peak : measured_peak(run.runtime(), profile.gemms, model_dtype(run.config()));
  return profile;
}

namespace {

void append_products(std::string& out, const StepProfile& profile) {
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
}

void append_work(std::string& out, const StepProfile& profile) {
  append(out, "\n  %-14s %10s %7s\n", "work", "ms", "share");
  std::array<Work, work_kinds> order;
  for (std::size_t k = 0; k < work_kinds; ++k) order[k] = static_cast<Work>(k);
  std::stable_sort(order.begin(), order.end(),
                   [&](Work a, Work b) { return profile.share(a) > profile.share(b); });
  for (const Work kind : order)
    append(out, "  %-14s %10.2f %6.1f%%\n",
           kind == Work::other ? "other and idle" : std::string(name_of(kind)).c_str(),
           profile.seconds[static_cast<std::size_t>(kind)] * 1e3, 100.0 * profile.share(kind));
}

std::string flop(double operations) {
  return train::with_si_prefix(operations) + "FLOP";
}

std::string mebibytes(std::size_t bytes) {
  return train::formatted("%.1f MiB", static_cast<double>(bytes) / 1048576.0);
}

void append_summary(std::string& out, const StepProfile& p) {
  const auto line = [&](std::string label, const std::string& text) {
    label.resize(21, ' ');
    out += "  " + label + text + '\n';
  };
  out += '\n';
  line("step",
       concat(train::formatted("%.1f ms", p.step_seconds * 1e3),
              train::formatted(" (%.1f ms with the timer's fences), ", p.timed_step_seconds * 1e3),
              train::with_thousands(std::llround(static_cast<double>(p.tokens_per_step) / p.step_seconds)),
              " tokens/s"));
  const double inside = p.seconds[static_cast<std::size_t>(Work::gemm)];
  line("products", concat(flop(p.gemm_flops()), " in the step at ", flop(p.gemm_flops() / inside),
                          "/s, alone ", flop(p.gemm_flops() / p.gemm_alone_seconds()),
                          train::formatted("/s; in the step %.0f%% of alone", 100.0 * p.gemm_efficiency())));
  line("gemm + recurrence",
       train::formatted("%.1f%% of the step", 100.0 * (p.share(Work::gemm) + p.share(Work::recurrence))));
  line("model FLOPs",
       concat(flop(p.model_flops.total()), " a step (products ", flop(p.model_flops.products), ", attention ",
              flop(p.model_flops.attention), ", recurrence ", flop(p.model_flops.recurrence),
              "): ", flop(p.model_flops.total() / p.step_seconds), "/s"));
  line("utilisation (MFU)", concat(train::formatted("%.1f%% of ", 100.0 * p.utilisation()),
                                   flop(p.peak.flops), "/s (", p.peak.source, ")"));
  line("time to first step", p.first_step_seconds
                                 ? concat(train::formatted("%.2f s", *p.first_step_seconds),
                                          " from the process's start to that step's end, ", p.weights)
                                 : std::string("unknown"));
  line("memory at most",
       concat(mebibytes(p.allocated_peak), " allocated, ", mebibytes(p.reserved_peak), " reserved"));
}

}  // namespace

std::string table(const StepProfile& profile) {
  std::string out;
  append_products(out, profile);
  append_work(out, profile);
  append_summary(out, profile);
  return out;
}

}  // namespace deltaport
