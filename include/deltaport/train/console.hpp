// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "deltaport/train/metrics.hpp"

namespace deltaport {

/// on and off as said; automatic: only where the stream is a terminal.
enum class Show { automatic, on, off };

struct ConsoleOptions {
  std::FILE* out = stdout;       ///< banner, step lines, notes
  std::FILE* progress = stderr;  ///< the bar
  Show bar = Show::automatic;
  Show colour = Show::automatic;
  std::int64_t total_steps = 0;
  std::int64_t every = 1;      ///< steps between step lines
  double bytes_per_token = 0;  ///< for bits per byte; 0 leaves them out
};

/// What a person sees of a run. For rank 0 only. Plain lines in logs; a progress bar, redrawn in place below
/// the lines, on terminals. The environment decides before the stream does: NO_COLOR switches colours off,
/// TERM=dumb colours and bar, DELTAPORT_PROGRESS=0 or 1 the bar off or on. Under mpirun the streams are pipes
/// (or pseudo-terminals that lead to a pipe), so automatic means off there; DELTAPORT_PROGRESS=1 draws the
/// bar on `out`, in order with the lines.
class Console {
 public:
  explicit Console(const ConsoleOptions& options);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// A heading and aligned rows of label and value.
  void banner(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows);
  /// After every step; prints a line every `every` steps, and for the last and for non-finite ones.
  void step(const StepMetrics& metrics);
  void evaluation(const EvalMetrics& metrics);
  /// A line of its own, such as "checkpoint step 100 written (0.3 s)".
  void note(const std::string& text);
  void warning(const std::string& text);
  /// Removes the bar.
  void finish();

 private:
  void print(const std::string& line);
  void draw_bar();
  void clear_bar();
  double seconds_left() const;

  ConsoleOptions options_;
  bool bar_ = false;
  bool colour_ = false;
  bool bar_drawn_ = false;
  StepMetrics latest_;
  double average_seconds_ = 0.0;
  std::chrono::steady_clock::time_point last_draw_{};
};

/// "step    120/1000  loss 3.0103  bpb 4.343  gnorm 0.720  lr 2.97e-04   412.6 ms     12,345 tok/s  mem
/// 0.52/0.60 GiB  eta 6m03s" in fixed columns; bpb only where bytes_per_token is known. `seconds_left` < 0
/// prints "eta --".
std::string step_line(const StepMetrics& metrics, std::int64_t total_steps, double bytes_per_token,
                      double seconds_left);
/// "eval    120/1000  loss 3.0103  bpb 4.343  (16,384 tokens)"
std::string evaluation_line(const EvalMetrics& metrics, std::int64_t total_steps, double bytes_per_token);
/// "[=======>          ]  40%  step 40/100  loss 3.0103  eta 38s", at most `columns` characters.
std::string progress_bar(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left,
                         int columns);

}  // namespace deltaport
