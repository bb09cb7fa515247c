// SPDX-License-Identifier: Apache-2.0
#include "deltaport/optim/schedule.hpp"

#include <algorithm>
#include <cmath>

#include "deltaport/core/error.hpp"

namespace deltaport {

namespace {

/// (s - begin) / (end - begin) in [0, 1]; 1 where the interval is empty.
double progress(std::int64_t s, std::int64_t begin, std::int64_t end) {
  if (s >= end) return 1.0;
  if (s <= begin) return 0.0;
  return static_cast<double>(s - begin) / static_cast<double>(end - begin);
}

double cosine(double ratio, double p) {
  if (p >= 1.0) return ratio;  // cos(pi) leaves a rounding error
  return ratio + (1.0 - ratio) * 0.5 * (1.0 + std::cos(3.14159265358979323846 * p));
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, double peak, std::int64_t total_steps,
                     std::int64_t step) {
  DELTAPORT_VALIDATE(step >= 0 && total_steps >= 0, ConfigError, "learning rate of step ", step, " of ",
                     total_steps, ": steps cannot be negative");
  DELTAPORT_VALIDATE(schedule.warmup >= 0 && schedule.decay >= 0, ConfigError, "schedule.warmup (",
                     schedule.warmup, ") and schedule.decay (", schedule.decay, ") cannot be negative");
  DELTAPORT_VALIDATE(peak >= 0.0 && std::isfinite(peak), ConfigError,
                     "optimizer.lr must be finite and >= 0, not ", peak);
  DELTAPORT_VALIDATE(schedule.min_lr_ratio >= 0.0 && schedule.min_lr_ratio <= 1.0, ConfigError,
                     "schedule.min_lr_ratio must be between 0 and 1, not ", schedule.min_lr_ratio);
  const std::int64_t s = step + 1;
  const double ratio = schedule.min_lr_ratio;
  if (s < schedule.warmup) return peak * (static_cast<double>(s) / static_cast<double>(schedule.warmup));
  if (s == schedule.warmup) return peak;
  switch (schedule.name) {
    case ScheduleName::cosine:
      return peak * cosine(ratio, progress(s, schedule.warmup, total_steps));
    case ScheduleName::wsd: {
      if (schedule.decay == 0) return peak;
      const std::int64_t begin = std::max(schedule.warmup, total_steps - schedule.decay);
      const double p = progress(s, begin, total_steps);
      return p >= 1.0 ? peak * ratio : peak * (1.0 - (1.0 - ratio) * p);
    }
    default:
      return peak;
  }
}

}  // namespace deltaport
