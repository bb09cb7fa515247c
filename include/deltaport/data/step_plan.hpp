// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace deltaport {

/// Consecutive sample numbers that go through the model together.
struct MicroBatch {
  std::int64_t first;
  std::int64_t count;
};

/// How an optimizer step is divided. Step s takes the samples [s G, (s + 1) G), G = global_samples; ranks and
/// micro-batches only partition that set.
struct StepPlan {
  std::int64_t global_samples;
  std::int64_t micro_batch;
  int ranks = 1;

  /// Throws ConfigError unless all are positive and global_samples is a multiple of ranks * micro_batch.
  void validate() const;
  /// Micro-batches of one rank in one step.
  std::int64_t micro_batches() const { return global_samples / (ranks * micro_batch); }
};

/// The micro-batches of `rank` in `step`: rank r has the contiguous share [r G / ranks, (r + 1) G / ranks) of
/// the step.
std::vector<MicroBatch> micro_batches_of(const StepPlan& plan, int rank, std::int64_t step);

}  // namespace deltaport
