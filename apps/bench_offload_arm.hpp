// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command.hpp"
#include "deltaport/config/load.hpp"

namespace deltaport::app {

/// What one process measured, with offload on or off. Bytes are those of the fullest step after the warm-up.
struct OffloadArm {
  bool on = false;
  std::int64_t allocated_bytes = 0;  ///< peaks of the arena
  std::int64_t reserved_bytes = 0;
  std::int64_t driver_used_bytes = 0;  ///< 0 on hosts
  std::int64_t pinned_bytes = 0;
  std::int64_t to_host_bytes = 0;  ///< of one step
  std::int64_t to_device_bytes = 0;
  double stall_seconds = 0.0;          ///< mean of a step
  double to_host_stall_seconds = 0.0;  ///< of these, for copies to the host
  double copy_seconds = 0.0;
  double overlap = 1.0;
  std::vector<double> step_seconds;
  std::string loss_hex;       ///< of the last step, to the last bit
  std::string peak_blocks;    ///< what was alive at the allocated peak
  std::string nothing_moved;  ///< why, when nothing did
  std::int64_t warmup_steps =
      0;  ///< before the measured ones; more than asked for where a capture needs them
  std::string graph_scope;
  double capture_seconds = 0.0;     ///< of all captures, before the measured steps and in them
  std::int64_t captured_steps = 0;  ///< measured steps that captured, so that their times hold it
  std::int64_t eager_steps = 0;  ///< measured steps that launched no graph although graph.scope is not none
  std::vector<std::string> graph_notes;  ///< passes that went on eagerly, and why

  double median_step_seconds() const;
};

/// Trains in this process and writes the figures to `path` as JSON. Returns the exit code.
int run_offload_arm(const Invocation& invocation, LoadRequest request, bool on, std::int64_t warmup,
                    std::int64_t steps, const std::string& path);
/// What run_offload_arm() wrote. Throws Error.
OffloadArm read_offload_arm(const std::string& path);

/// "off" and "on" of one pair, each in a process of its own.
struct OffloadPair {
  OffloadArm off, on;
  /// Step time with offload over that without, minus one.
  double time_change() const { return on.median_step_seconds() / off.median_step_seconds() - 1.0; }
  bool same_bits() const { return on.loss_hex == off.loss_hex; }
};
std::string offload_table(const std::vector<OffloadPair>& pairs);
std::string offload_json(const std::vector<OffloadPair>& pairs);

}  // namespace deltaport::app
