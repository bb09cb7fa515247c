// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/config/run_config.hpp"

namespace deltaport {

/// Learning rate of optimizer step `step` (0-based) in a run of `total_steps`. With W = schedule.warmup,
/// r = schedule.min_lr_ratio and s = step + 1:
///
///   warm-up, all schedules, s <= W:  peak s / W    (the first step already learns; step W - 1 has the peak)
///   constant:                        peak
///   cosine:                          peak (r + (1 - r) (1 + cos(pi p)) / 2),  p = (s - W) / (total_steps - W)
///   wsd, s <= B:                     peak,                 B = max(W, total_steps - schedule.decay)
///        s > B:                      peak (1 - (1 - r) p), p = (s - B) / (total_steps - B)
///
/// p is clamped to [0, 1]: the last step has exactly peak r, and so have steps beyond the end. A warm-up as
/// long as the run never leaves it. wsd with decay = 0 keeps the peak. Host only, no state: step and
/// configuration are everything. Throws ConfigError for negative steps, lengths or rates and for r outside [0, 1].
double learning_rate(const ScheduleConfig& schedule, double peak, std::int64_t total_steps,
                     std::int64_t step);

}  // namespace deltaport
