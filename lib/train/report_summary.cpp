// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "deltaport/core/error.hpp"
#include "deltaport/train/report.hpp"
#include "train/number_format.hpp"

namespace deltaport {
namespace {

using train::formatted;

std::string loss_text(double loss, double bytes_per_token) {
  if (std::isnan(loss)) return "--";
  std::string text = formatted("%.4f", loss);
  if (bytes_per_token > 0.0)
    text += formatted("  (%.4f bits per byte)", bits_per_byte(loss, bytes_per_token));
  return text;
}

std::string evaluation_text(const EvalMetrics& m, double bytes_per_token) {
  return loss_text(m.loss, bytes_per_token) + "  after step " + train::with_thousands(m.step);
}

}  // namespace

RunSummary summarize(const MetricsHistory& history) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  RunSummary s;
  s.first_loss = s.last_loss = s.lowest_loss = nan;
  std::int64_t timed_tokens = 0;
  double timed_seconds = 0.0;
  for (std::size_t i = 0; i < history.steps.size(); ++i) {
    const StepMetrics& m = history.steps[i];
    ++s.steps;
    s.tokens += m.tokens;
    s.memory_allocated_bytes = std::max(s.memory_allocated_bytes, m.memory_allocated_bytes);
    if (std::isfinite(m.seconds)) {
      s.seconds += m.seconds;
      if (i > 0 || history.steps.size() == 1) {
        timed_tokens += m.tokens;
        timed_seconds += m.seconds;
      }
    }
    if (i == 0) s.first_loss = m.loss;
    s.last_loss = m.loss;
    if (!std::isfinite(m.loss)) {
      ++s.non_finite;
    } else if (!(s.lowest_loss <= m.loss)) {
      s.lowest_loss = m.loss;
      s.lowest_step = m.step;
    }
  }
  if (timed_seconds > 0.0) s.tokens_per_second = static_cast<double>(timed_tokens) / timed_seconds;
  if (!history.evaluations.empty()) {
    s.first_evaluation = history.evaluations.front();
    s.last_evaluation = history.evaluations.back();
  }
  return s;
}

std::string report_text(const MetricsHistory& history) {
  const RunSummary s = summarize(history);
  const double bytes = history.run.bytes_per_token;
  const auto row = [](const char* label, const std::string& value) {
    std::string text = std::string("  ") + label;
    text.resize(22, ' ');
    return text + value + '\n';
  };
  std::string text = history.run.name.empty() ? "run\n" : history.run.name + '\n';
  text += row("steps", train::with_thousands(s.steps) +
                           (history.run.steps > 0 ? " of " + train::with_thousands(history.run.steps) : "") +
                           (history.steps.empty() || history.steps.front().step == 1
                                ? ""
                                : ", from step " + train::with_thousands(history.steps.front().step)));
  if (!history.run.precision.empty()) text += row("precision", history.run.precision);
  if (s.steps > 0) {
    text += row("training loss", loss_text(s.first_loss, 0) + " -> " + loss_text(s.last_loss, bytes));
    text +=
        row("lowest", loss_text(s.lowest_loss, bytes) + "  at step " + train::with_thousands(s.lowest_step));
  }
  if (s.non_finite > 0) text += row("not finite", train::with_thousands(s.non_finite) + " steps");
  if (s.first_evaluation) text += row("validation loss", evaluation_text(*s.first_evaluation, bytes));
  if (s.last_evaluation && s.last_evaluation->step != s.first_evaluation->step)
    text += row("", evaluation_text(*s.last_evaluation, bytes));
  if (s.steps > 0) {
    text += row("tokens", train::with_thousands(s.tokens) + " in " + train::duration(s.seconds) + ", " +
                              train::with_thousands(std::llround(s.tokens_per_second)) + " tokens/s");
    text += row("peak memory", train::gib(s.memory_allocated_bytes) + " GiB per rank");
  }
  return text;
}

}  // namespace deltaport
