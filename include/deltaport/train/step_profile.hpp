// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deltaport/core/gemm.hpp"
#include "deltaport/core/work_timer.hpp"
#include "deltaport/model/model_flops.hpp"
#include "deltaport/train/training_run.hpp"

namespace deltaport {

/// One shape of product in a training step, and its speed when it is the only thing that runs.
struct GemmProfile {
  GemmCall call;
  std::int64_t count = 0;      ///< per step
  double alone_seconds = 0.0;  ///< median of one call, on its own
};

/// What a chip could do at most, in operations a second, and how that is known.
struct PeakRate {
  double flops = 0.0;
  std::string source;
};

/// Where the time of a training step goes, on this rank. Times are medians over the measured steps, in
/// seconds.
struct StepProfile {
  double step_seconds = 0.0;        ///< without the timer's fences
  double timed_step_seconds = 0.0;  ///< with them; the shares below are of this
  std::array<double, work_kinds> seconds{};
  std::int64_t tokens_per_step = 0;  ///< over all ranks
  std::vector<GemmProfile> gemms;    ///< by total time alone, largest first
  ModelFlops model_flops;            ///< of one step on this rank
  PeakRate peak;  ///< as given, else of the fastest product: one of the step's alone, or a large one
  std::optional<double> first_step_seconds;  ///< from the process's start to the end of its first step
  std::string weights;                       ///< where they came from: "random weights"
  std::size_t allocated_peak = 0;            ///< bytes of the arena, in the first measured step
  std::size_t reserved_peak = 0;

  double share(Work kind) const;
  /// Floating-point operations of all products of one step on this rank.
  double gemm_flops() const;
  double gemm_alone_seconds() const;
  /// Time of the step's products alone over their time inside the step: 1 means nothing is lost around them.
  double gemm_efficiency() const;
  /// Share of the peak that the model's operations reach in a step without the timer ("MFU").
  double utilisation() const;
};

/// Runs `warmup` steps, then `steps` without and `steps` with the work timer, interleaved, then every product
/// shape alone, and a large one unless `peak` is given. Collective. Training state changes. Throws
/// ConfigError unless warmup >= 0 and steps >= 1.
StepProfile profile_steps(AnyTrainingRun& run, const Communicator& communicator, std::int64_t warmup,
                          std::int64_t steps, const std::optional<PeakRate>& peak = {});

/// The profile as aligned text: products, kinds of work, and last what sums it up.
std::string table(const StepProfile& profile);

}  // namespace deltaport
