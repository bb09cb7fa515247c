// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "deltaport/train/metrics.hpp"

namespace deltaport {

/// A run in a few numbers. Values that are not finite take no part in the extremes and means.
struct RunSummary {
  std::int64_t steps = 0;       ///< recorded
  std::int64_t non_finite = 0;  ///< steps whose loss was not finite
  double first_loss = 0.0;      ///< NaN, as all losses here, when nothing is there
  double last_loss = 0.0;
  double lowest_loss = 0.0;
  std::int64_t lowest_step = 0;
  std::optional<EvalMetrics> first_evaluation;
  std::optional<EvalMetrics> last_evaluation;
  std::int64_t tokens = 0;
  double seconds = 0.0;
  double tokens_per_second = 0.0;  ///< all tokens over all seconds, first step left out if there are more
  std::int64_t memory_allocated_bytes = 0;
};
RunSummary summarize(const MetricsHistory& history);

/// The summary as aligned lines of text.
std::string report_text(const MetricsHistory& history);

/// A self-contained SVG (no scripts, no outside fonts): training loss with its moving average and the
/// validation losses, with an axis of bits per byte where the bytes per token are known; below it learning
/// rate, gradient norm and tokens per second. Axes become logarithmic when values span more than a factor
/// of 50. Steps with a loss that is not finite are marked. Any history can be drawn, also an empty one.
std::string report_svg(const MetricsHistory& history);

/// Writes report_svg() to `path`. A file there is replaced as a whole or, on failure, left as it was; a device or pipe
/// is written to. Throws DataError naming the file.
void write_report(const MetricsHistory& history, const std::string& path);

}  // namespace deltaport
