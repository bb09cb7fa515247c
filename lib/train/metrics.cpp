// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/metrics.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numbers>

#include "deltaport/core/error.hpp"
#include "train/metrics_format.hpp"

namespace deltaport {

double bits_per_byte(double loss, double bytes_per_token) {
  if (!(bytes_per_token > 0.0)) return std::numeric_limits<double>::quiet_NaN();
  return loss / std::numbers::ln2 / bytes_per_token;
}

MetricsWriter::MetricsWriter(const std::string& path, const RunMetrics& run,
                             std::optional<std::int64_t> resume_step)
    : path_(path) {
  const bool resume = resume_step.has_value() && std::filesystem::exists(path);
  std::size_t keep = 0;
  if (resume) {
    std::size_t first_later = std::numeric_limits<std::size_t>::max();
    keep = train::visit_lines(path, [&](const train::MetricsRecord& record, std::size_t offset) {
      if (record.step_number() > *resume_step) {
        first_later = std::min(first_later, offset);
      } else if (first_later > offset) {
        if (record.step) last_step_ = record.step->step;
        if (record.evaluation) last_eval_ = record.evaluation->step;
      }
    });
    keep = std::min(keep, first_later);
    std::error_code error;
    std::filesystem::resize_file(path, keep, error);
    DELTAPORT_VALIDATE(!error, DataError, path, ": cannot be cut to the resumed step: ", error.message());
  }
  file_ = std::fopen(path.c_str(), resume ? "ab" : "wb");
  DELTAPORT_VALIDATE(file_ != nullptr, DataError, path,
                     ": cannot be opened for writing: ", std::strerror(errno));
  if (keep == 0) put(train::to_line(run));
}

MetricsWriter::~MetricsWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

void MetricsWriter::put(const std::string& line) {
  const std::string text = line + '\n';
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file_) == text.size() && std::fflush(file_) == 0;
  DELTAPORT_VALIDATE(written, DataError, path_, ": writing failed: ", std::strerror(errno));
}

void MetricsWriter::write(const StepMetrics& metrics) {
  DELTAPORT_VALIDATE(metrics.step > last_step_, Error, path_, ": step ", metrics.step, " after step ",
                     last_step_);
  put(train::to_line(metrics));
  last_step_ = metrics.step;
}

void MetricsWriter::write(const EvalMetrics& metrics) {
  if (metrics.step == last_eval_) return;
  DELTAPORT_VALIDATE(metrics.step > last_eval_ && metrics.step >= last_step_, Error, path_,
                     ": evaluation of step ", metrics.step, " after step ", std::max(last_step_, last_eval_));
  put(train::to_line(metrics));
  last_eval_ = metrics.step;
}

MetricsHistory read_metrics(const std::string& path) {
  MetricsHistory history;
  train::visit_lines(path, [&history](const train::MetricsRecord& record, std::size_t) {
    if (record.run) history.run = *record.run;
    if (record.step) history.steps.push_back(*record.step);
    if (record.evaluation) history.evaluations.push_back(*record.evaluation);
  });
  return history;
}

}  // namespace deltaport
