// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/checkpoint/training_state.hpp"

namespace deltaport::checkpoint {

/// Text of state.json: everything of the state but the configuration, and the optimizer's count of updates.
std::string to_json(const TrainingState& state, std::int64_t optimizer_updates);

struct ParsedState {
  TrainingState state;
  std::int64_t optimizer_updates = 0;
};
/// Throws CheckpointError naming `file`.
ParsedState parse_state(const std::string& text, const std::string& file);

}  // namespace deltaport::checkpoint
