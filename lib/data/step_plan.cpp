// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/step_plan.hpp"

#include <limits>

#include "deltaport/core/error.hpp"

namespace deltaport {

void StepPlan::validate() const {
  DELTAPORT_VALIDATE(global_samples > 0 && micro_batch > 0 && ranks > 0, ConfigError, "a step of ",
                     global_samples, " samples on ", ranks, " ranks in micro-batches of ", micro_batch,
                     ": all three must be at least 1");
  DELTAPORT_VALIDATE(micro_batch <= global_samples / ranks && global_samples % (ranks * micro_batch) == 0,
                     ConfigError, "a step of ", global_samples, " samples cannot be divided evenly over ",
                     ranks, " ranks in micro-batches of ", micro_batch,
                     "; make it a multiple of ranks x micro-batch");
}

std::vector<MicroBatch> micro_batches_of(const StepPlan& plan, int rank, std::int64_t step) {
  plan.validate();
  DELTAPORT_VALIDATE(rank >= 0 && rank < plan.ranks, Error, "rank ", rank, " of ", plan.ranks);
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  DELTAPORT_VALIDATE(step >= 0 && step < last / plan.global_samples, Error, "step ", step, " of ",
                     plan.global_samples, " samples has no sample numbers in 64 bits");
  std::vector<MicroBatch> micro_batches;
  const std::int64_t share = plan.global_samples / plan.ranks;
  const std::int64_t first = step * plan.global_samples + rank * share;
  for (std::int64_t i = 0; i < plan.micro_batches(); ++i)
    micro_batches.push_back({first + i * plan.micro_batch, plan.micro_batch});
  return micro_batches;
}

}  // namespace deltaport
