// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/console.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

constexpr const char* clear_line = "\r\033[K";

bool variable_is(const char* name, const char* value) {
  const char* text = std::getenv(name);
  return text != nullptr && std::strcmp(text, value) == 0;
}

/// A stream that a person watches. Launchers connect ranks to pseudo-terminals even when their own output
/// goes to a file, so under a launcher nothing counts as a terminal.
bool is_terminal(std::FILE* stream) {
  for (const char* launched : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID"})
    if (std::getenv(launched) != nullptr) return false;
  return !variable_is("TERM", "dumb") && isatty(fileno(stream)) != 0;
}

bool shown(Show show, std::FILE* stream) {
  return show == Show::on || (show == Show::automatic && is_terminal(stream));
}

int columns_of(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

Console::Console(const ConsoleOptions& options) : options_(options) {
  DELTAPORT_VALIDATE(options.out != nullptr && options.progress != nullptr && options.every > 0, Error,
                     "console: needs two streams and every > 0");
  if (variable_is("DELTAPORT_PROGRESS", "0")) options_.bar = Show::off;
  if (variable_is("DELTAPORT_PROGRESS", "1") && options_.bar == Show::automatic) {
    options_.bar = Show::on;
    options_.progress = options_.out;
  }
  bar_ = shown(options_.bar, options_.progress);
  const char* no_colour = std::getenv("NO_COLOR");
  colour_ = shown(options_.colour, options_.out) && (no_colour == nullptr || *no_colour == '\0');
}

Console::~Console() {
  finish();
}

void Console::banner(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows) {
  std::size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.first.size());
  print(colour_ ? "\033[1m" + title + "\033[0m" : title);
  for (const auto& [label, value] : rows)
    print("  " + label + std::string(width - label.size() + 2, ' ') + value);
}

void Console::step(const StepMetrics& metrics) {
  latest_ = metrics;
  // The first steps are slower (memory is touched for the first time): forget them soon.
  if (metrics.seconds > 0.0)
    average_seconds_ =
        average_seconds_ == 0.0 ? metrics.seconds : 0.8 * average_seconds_ + 0.2 * metrics.seconds;
  const bool finite = std::isfinite(metrics.loss) && std::isfinite(metrics.grad_norm);
  if (metrics.step % options_.every == 0 || metrics.step == options_.total_steps || !finite) {
    const std::string line =
        step_line(metrics, options_.total_steps, options_.bytes_per_token, seconds_left());
    print(colour_ && !finite ? "\033[31m" + line + "\033[0m" : line);
  }
  draw_bar();
}

void Console::evaluation(const EvalMetrics& metrics) {
  const std::string line = evaluation_line(metrics, options_.total_steps, options_.bytes_per_token);
  print(colour_ ? "\033[1m" + line + "\033[0m" : line);
  draw_bar();
}

void Console::note(const std::string& text) {
  print(text);
  draw_bar();
}

void Console::warning(const std::string& text) {
  print(colour_ ? "\033[33mwarning:\033[0m " + text : "warning: " + text);
  draw_bar();
}

void Console::finish() {
  clear_bar();
}

void Console::print(const std::string& line) {
  clear_bar();
  std::fprintf(options_.out, "%s\n", line.c_str());
  std::fflush(options_.out);
}

void Console::draw_bar() {
  if (!bar_ || latest_.step >= options_.total_steps) return;
  const auto now = std::chrono::steady_clock::now();
  if (bar_drawn_ && now - last_draw_ < std::chrono::milliseconds(100)) return;
  last_draw_ = now;
  // One column stays free: a full line would wrap and could not be redrawn.
  const std::string bar =
      progress_bar(latest_, options_.total_steps, seconds_left(), columns_of(options_.progress) - 1);
  std::fprintf(options_.progress, "%s%s", clear_line, bar.c_str());
  std::fflush(options_.progress);
  bar_drawn_ = true;
}

void Console::clear_bar() {
  if (!bar_drawn_) return;
  std::fputs(clear_line, options_.progress);
  std::fflush(options_.progress);
  bar_drawn_ = false;
}

double Console::seconds_left() const {
  if (average_seconds_ == 0.0) return -1.0;
  return average_seconds_ * static_cast<double>(options_.total_steps - latest_.step);
}

}  // namespace deltaport
