// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/report.hpp"

#include <cstdio>
#include <filesystem>

#include "command.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport::app {
namespace {

struct Options {
  std::string run;
  std::string out;
};

/// RUN is the run's directory or its metrics file.
std::filesystem::path metrics_file(const std::string& run) {
  const std::filesystem::path path(run);
  return std::filesystem::is_directory(path) ? path / "metrics.jsonl" : path;
}

int report(const Options& options) {
  const std::filesystem::path from = metrics_file(options.run);
  const MetricsHistory history = read_metrics(from.string());
  DELTAPORT_VALIDATE(!history.steps.empty() || !history.evaluations.empty(), DataError, from.string(),
                     ": holds no step yet");
  const std::string out = options.out.empty() ? (from.parent_path() / "report.svg").string() : options.out;
  write_report(history, out);
  std::printf("%swrote %s\n", report_text(history).c_str(), out.c_str());
  return 0;
}

}  // namespace

void add_report(CLI::App& parent, const Invocation&, Action& action) {
  CLI::App* command =
      parent.add_subcommand("report", "Draw the curves of a run as an SVG and sum it up in a few lines");
  auto options = std::make_shared<Options>();
  command->add_option("RUN", options->run, "Directory of the run (run.dir), or its metrics.jsonl")
      ->required();
  command->add_option("--out", options->out, "File to write (default: report.svg beside the metrics)");
  command->callback([options, &action] { action = [options] { return report(*options); }; });
}

}  // namespace deltaport::app
