// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "deltaport/train/metrics.hpp"

namespace deltaport::train {

std::string to_line(const RunMetrics& metrics);
std::string to_line(const StepMetrics& metrics);
std::string to_line(const EvalMetrics& metrics);
std::string to_line(const CheckpointMetrics& metrics);
std::string to_line(const GraphMetrics& metrics);
std::string to_line(const OffloadMetrics& metrics);
std::string to_line(const WarningMetrics& metrics);

/// One line of a metrics file; exactly one member is set.
struct MetricsRecord {
  std::optional<RunMetrics> run;
  std::optional<StepMetrics> step;
  std::optional<EvalMetrics> evaluation;
  std::optional<CheckpointMetrics> checkpoint;
  std::optional<GraphMetrics> graphs;
  std::optional<OffloadMetrics> offload;
  std::optional<WarningMetrics> warning;
  /// Of any kind; 0 for the run record.
  std::int64_t step_number() const;
};
/// Throws DataError with what is wrong, without the place.
MetricsRecord parse_line(std::string_view line);

/// Calls visit(record, offset of the line's first byte) for each complete line of the file and returns the
/// offset behind the last one. A last line without newline, or that does not parse, is torn and left out.
/// Throws DataError (file:line).
std::size_t visit_lines(const std::string& path,
                        const std::function<void(const MetricsRecord&, std::size_t)>& visit);

}  // namespace deltaport::train
