// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "deltaport/comm/communicator.hpp"
#include "deltaport/config/run_config.hpp"
#include "deltaport/core/runtime.hpp"
#include "deltaport/offload/offloader.hpp"
#include "deltaport/train/metrics.hpp"

namespace deltaport {

/// "12 x mixer projections 4.5 MiB, mlp gate_up 2.0 MiB, ...": what blocks of each name take together, the largest
/// `names` of them.
std::string block_summary(const std::vector<ArenaBlock>& blocks, std::size_t names);

/// Offload of one run: the pool near this rank's device, the transfers, and their figures. Every rank constructs it and
/// calls it in the same order.
class RunOffload {
 public:
  /// Takes one page of the pool's memory, the rest during the first forward. Throws OutOfMemory when offload.pinned_limit
  /// is more than the machine leaves, Error for offload.strict_numa that cannot be met.
  RunOffload(const Communicator& communicator, Runtime& runtime, const OffloadConfig& config,
             GraphScope graphs = GraphScope::none);

  SavedMover& mover() { return *offloader_; }
  const offload::Offloader& offloader() const { return *offloader_; }
  const offload::PinnedPool& pool() const { return *pool_; }

  /// What was asked for and where the host memory is, in one line.
  std::string description() const;
  /// Figures since the last call, of all ranks; peaks are those since the arena's last reset_peak(). To be called when
  /// the step's results have reached the host. Throws Error when tensors are left on the host. Collective.
  OffloadMetrics take_metrics(std::int64_t step, double step_seconds);
  /// What this rank's user should know about the step that `metrics` are of; each thing is said once.
  std::vector<std::string> take_warnings(const OffloadMetrics& metrics);
  /// One line about the last step and the plan.
  std::string summary(const OffloadMetrics& metrics) const;

 private:
  Communicator communicator_;
  Runtime& runtime_;
  OffloadConfig config_;
  std::unique_ptr<offload::PinnedPool> pool_;
  std::unique_ptr<offload::Offloader> offloader_;
  int stalled_steps_ = 0;  // in a row
  bool warned_of_stall_ = false;
  bool warned_of_nothing_ = false;
};

}  // namespace deltaport
