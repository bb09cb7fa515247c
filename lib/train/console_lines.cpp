// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "deltaport/train/console.hpp"
#include "train/number_format.hpp"

namespace deltaport {
namespace {

using train::formatted;

std::string padded(const std::string& text, std::size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string position(std::int64_t step, std::int64_t total_steps) {
  const std::string total = std::to_string(total_steps);
  return padded(std::to_string(step), std::max<std::size_t>(total.size(), 6)) + '/' + total;
}

std::string loss_columns(double loss, double bytes_per_token) {
  std::string text = "  loss " + padded(formatted("%.4f", loss), 7);
  if (bytes_per_token > 0.0)
    text += "  bpb " + padded(formatted("%.3f", bits_per_byte(loss, bytes_per_token)), 6);
  return text;
}

}  // namespace

std::string step_line(const StepMetrics& m, std::int64_t total_steps, double bytes_per_token,
                      double seconds_left) {
  return "step " + position(m.step, total_steps) + loss_columns(m.loss, bytes_per_token) + "  gnorm " +
         padded(formatted(std::abs(m.grad_norm) < 1000.0 ? "%.3f" : "%.2e", m.grad_norm), 8) + "  lr " +
         formatted("%.2e", m.lr) + "  " + padded(train::step_time(m.seconds), 10) + "  " +
         padded(train::with_thousands(std::llround(m.tokens_per_second())), 11) + " tok/s  mem " +
         train::gib(m.memory_allocated_bytes) + '/' + train::gib(m.memory_reserved_bytes) + " GiB  eta " +
         train::duration(seconds_left);
}

std::string evaluation_line(const EvalMetrics& m, std::int64_t total_steps, double bytes_per_token) {
  return "eval " + position(m.step, total_steps) + loss_columns(m.loss, bytes_per_token) + "  (validation, " +
         train::with_thousands(m.valid_tokens) + " tokens, " + train::duration(m.seconds) + ')';
}

std::string progress_bar(const StepMetrics& m, std::int64_t total_steps, double seconds_left, int columns) {
  const double part =
      total_steps > 0 ? std::clamp(static_cast<double>(m.step) / static_cast<double>(total_steps), 0.0, 1.0)
                      : 0.0;
  const std::string total = std::to_string(total_steps);
  const std::string tail = formatted("%4.0f%%", std::floor(part * 100.0)) + "  step " +
                           padded(std::to_string(m.step), total.size()) + '/' + total +
                           formatted("  loss %.4f", m.loss) + "  eta " + train::duration(seconds_left);
  const int width = std::min(40, columns - static_cast<int>(tail.size()) - 2);
  if (width < 5) return tail.substr(0, static_cast<std::size_t>(std::max(columns, 0)));
  const int done = static_cast<int>(part * width);
  std::string bar(static_cast<std::size_t>(done), '=');
  if (done < width) bar += '>';
  bar.resize(static_cast<std::size_t>(width), ' ');
  return '[' + bar + ']' + tail;
}

}  // namespace deltaport
