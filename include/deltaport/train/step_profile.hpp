// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "deltaport/core/gemm.hpp"
#include "deltaport/core/work_timer.hpp"
#include "deltaport/train/training_run.hpp"

namespace deltaport {

/// One shape of product in a training step, and its speed when it is the only thing that runs.
struct GemmProfile {
  GemmCall call;
  std::int64_t count = 0;      ///< per step
  double alone_seconds = 0.0;  ///< median of one call, on its own
};

/// Where the time of a training step goes, on this rank. Times are medians over the measured steps, in
/// seconds.
struct StepProfile {
  double step_seconds = 0.0;        ///< without the timer's fences
  double timed_step_seconds = 0.0;  ///< with them; the shares below are of this
  std::array<double, work_kinds> seconds{};
  std::int64_t tokens_per_step = 0;  ///< over all ranks
  std::vector<GemmProfile> gemms;    ///< by total time alone, largest first

  double share(Work kind) const;
  /// Floating-point operations of all products of one step on this rank.
  double gemm_flops() const;
  double gemm_alone_seconds() const;
  /// Time of the step's products alone over their time inside the step: 1 means nothing is lost around them.
  double gemm_efficiency() const;
};

/// Runs `warmup` steps, then `steps` without and `steps` with the work timer, interleaved, then every product
/// shape alone. Collective. Training state changes. Throws ConfigError unless warmup >= 0 and steps >= 1.
StepProfile profile_steps(AnyTrainingRun& run, const Communicator& communicator, std::int64_t warmup,
                          std::int64_t steps);

/// The profile as an aligned text table.
std::string table(const StepProfile& profile);

}  // namespace deltaport
