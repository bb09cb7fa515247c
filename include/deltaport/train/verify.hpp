// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deltaport/comm/communicator.hpp"
#include "deltaport/config/run_config.hpp"

namespace deltaport {

/// One way to run the same training steps.
struct VerifyArm {
  std::string name;
  RunConfig config;
  /// Captured graphs are what this arm is there for: without any it proves nothing, and fails.
  bool must_capture = false;
  /// The same of transfers of saved tensors to the host and back, in the last step and on every rank.
  bool must_move = false;
};

/// What two ways of running differ in. Ends the command with exit code 1.
struct VerifyError : Error {
  explicit VerifyError(const std::string& m) : Error(m) {}
};

/// Trains `steps` steps with each arm beside the same steps with `reference`, both from the start, and compares after
/// every step: the hash of the inputs, loss, gradient norm, learning rate, number of updates, and, bit for bit, all
/// gradients, weights and both moments of the optimizer. `print` gets the lines of a table as they come (on rank 0).
/// Throws VerifyError at the first difference, naming arm, step, tensor and element and both values; ConfigError
/// unless steps >= 1, for arms in another train.precision than `reference`, whose bits cannot be the same, and for arms
/// whose warm-up leaves no step in which they capture or move what they must. Says so when steps of the reference were
/// not finite. Two models are in memory at a time. Writes no files. Collective.
void verify(const Communicator& communicator, const RunConfig& reference, const std::vector<VerifyArm>& arms,
            std::int64_t steps, const std::function<void(const std::string& line)>& print);

}  // namespace deltaport
