// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/metrics.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numbers>
#include <string_view>

#include "deltaport/core/error.hpp"
#include "train/metrics_format.hpp"

namespace deltaport {

double bits_per_byte(double loss, double bytes_per_token) {
  if (!(bytes_per_token > 0.0)) return std::numeric_limits<double>::quiet_NaN();
  return loss / std::numbers::ln2 / bytes_per_token;
}

double OffloadMetrics::overlap() const {
  const double copying = to_host_seconds + to_device_seconds;
  return copying > 0.0 ? std::clamp(1.0 - stall_seconds / copying, 0.0, 1.0) : 1.0;
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
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0666);
  DELTAPORT_VALIDATE(file_ >= 0, DataError, path, ": cannot be opened for writing: ", std::strerror(errno));
  size_ = static_cast<std::int64_t>(keep);
  if (keep > 0) return;
  first_line_ = train::to_line(run) + '\n';
  if (append(first_line_)) first_line_.clear();
}

MetricsWriter::~MetricsWriter() {
  if (file_ >= 0) ::close(file_);
}

// Not a buffered stream: that would keep the part it could not write, and write it later.
bool MetricsWriter::append(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int reason = errno;
      // A torn line before whole ones would be damage. A device has nothing to cut, and refuses.
      [[maybe_unused]] const int cut = ::ftruncate(file_, size_);
      errno = reason;
      return false;
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<std::int64_t>(text.size());
  return true;
}

void MetricsWriter::put(const std::string& line) {
  DELTAPORT_VALIDATE(append(first_line_ + line + '\n'), DataError, path_,
                     ": writing failed: ", std::strerror(errno));
  first_line_.clear();
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

void MetricsWriter::write(const CheckpointMetrics& metrics) {
  DELTAPORT_VALIDATE(metrics.step >= last_step_, Error, path_, ": checkpoint of step ", metrics.step,
                     " after step ", last_step_);
  put(train::to_line(metrics));
}

void MetricsWriter::write(const GraphMetrics& metrics) {
  DELTAPORT_VALIDATE(metrics.step >= last_step_, Error, path_, ": graphs of step ", metrics.step,
                     " after step ", last_step_);
  put(train::to_line(metrics));
}

void MetricsWriter::write(const OffloadMetrics& metrics) {
  DELTAPORT_VALIDATE(metrics.step >= last_step_, Error, path_, ": offload of step ", metrics.step,
                     " after step ", last_step_);
  put(train::to_line(metrics));
}

void MetricsWriter::write(const WarningMetrics& metrics) {
  DELTAPORT_VALIDATE(metrics.step >= last_step_, Error, path_, ": warning of step ", metrics.step,
                     " after step ", last_step_);
  put(train::to_line(metrics));
}

MetricsHistory read_metrics(const std::string& path) {
  MetricsHistory history;
  train::visit_lines(path, [&history](const train::MetricsRecord& record, std::size_t) {
    if (record.run) history.run = *record.run;
    if (record.step) history.steps.push_back(*record.step);
    if (record.evaluation) history.evaluations.push_back(*record.evaluation);
    if (record.checkpoint) history.checkpoints.push_back(*record.checkpoint);
    if (record.graphs) history.graphs.push_back(*record.graphs);
    if (record.offload) history.offload.push_back(*record.offload);
    if (record.warning) history.warnings.push_back(*record.warning);
  });
  return history;
}

}  // namespace deltaport
