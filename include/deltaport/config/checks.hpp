// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltaport/config/run_config.hpp"

namespace deltaport {

/// Ranges and cross-field rules of a configuration made in code; load_config() does the same with locations.
/// Data may be absent. Throws ConfigError listing every problem.
void check_config(const RunConfig& config);

/// Micro-batches that each rank accumulates per optimizer step: global_batch_tokens / (seq_len * micro_batch
/// * ranks). Throws ConfigError naming all factors when that is no whole number >= 1.
std::int64_t check_ranks(const RunConfig& config, int ranks);

/// A key that decides what a run computes and has two values.
struct IdentityDifference {
  std::string path;
  std::string before;
  std::string after;
};

/// Keys that must not change when a run resumes (model, seed, batch, data, optimizer, schedule, steps) and
/// differ. Placement (micro_batch, logging, checkpoint, eval, recurrence, chunk sizes, directories) may
/// change.
std::vector<IdentityDifference> identity_differences(const RunConfig& before, const RunConfig& after);

}  // namespace deltaport
