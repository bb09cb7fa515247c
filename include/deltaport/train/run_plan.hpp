// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltaport/config/run_config.hpp"
#include "deltaport/model/model_size.hpp"

namespace deltaport {

/// What a run will do and take, known from its configuration alone. Memory is that of one rank, in bytes.
struct RunPlan {
  int ranks = 1;
  std::vector<SizeEntry> parameters;
  std::int64_t parameter_count = 0;
  std::int64_t micro_batches = 0;  ///< per rank and step
  std::int64_t tokens_per_step = 0;
  std::int64_t total_tokens = 0;
  std::vector<SizeEntry> static_memory;  ///< weights, masters, gradients, moments
  ActivationSize activations;
  std::int64_t moving_groups = 0;    ///< of saved_groups, with offload
  std::int64_t saved_groups = 0;     ///< those in offload.scopes
  std::int64_t offloaded_bytes = 0;  ///< saved activations that leave the device
  std::int64_t pinned_bytes = 0;     ///< host memory that they take, in whole pages
  double fitting_fraction = 0.0;     ///< the largest offload.fraction within offload.pinned_limit; 0: none
  std::string why_nothing_moves;     ///< with offload on, where moving_groups is 0

  std::int64_t static_bytes() const;
  /// Static memory, saved activations that stay, and workspace.
  std::int64_t total_bytes() const;
};

/// Throws ConfigError when `ranks` does not divide the batch, and when tokens, parameters or bytes are too many to count. Allocates no tensor memory and needs no device.
RunPlan make_plan(const RunConfig& config, int ranks);

/// Largest train.micro_batch that fits in `bytes` per rank and divides the batch; 0 when none does.
std::int64_t largest_micro_batch(const RunConfig& config, int ranks, std::int64_t bytes);

/// The plan as text. With memory_gib > 0 it ends with whether the run fits and which micro-batch would.
std::string plan_text(const RunPlan& plan, const RunConfig& config, double memory_gib);

}  // namespace deltaport
