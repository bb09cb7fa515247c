// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deltaport/checkpoint/training_state.hpp"
#include "deltaport/comm/communicator.hpp"
#include "deltaport/config/load.hpp"
#include "deltaport/train/console.hpp"
#include "deltaport/train/metrics.hpp"
#include "deltaport/train/signals.hpp"
#include "deltaport/train/training_run.hpp"

namespace deltaport {

namespace train {
class RunLock;
}

struct TrainerOptions {
  /// Keys that may differ between the configuration and the checkpoint that is resumed, e.g. "train.steps".
  std::vector<std::string> allowed_changes;
};

/// Folder of a run's checkpoints: checkpoint.dir, or <run.dir>/checkpoints when that is empty.
std::string checkpoint_folder(const RunConfig& config);

/// The training loop: steps, evaluations, metrics, checkpoints and signals of one run. Writes into run.dir:
/// config.resolved.yaml, config.original/ (the files as given), metrics.jsonl and checkpoints/. Collective.
class Trainer {
 public:
  /// Opens data, builds the model, and loads the checkpoint that checkpoint.resume asks for. Throws
  /// ConfigError (also when the configuration does not belong to the checkpoint: every differing key is
  /// listed), DataError, CheckpointError.
  Trainer(const Communicator& communicator, Runtime& runtime, const LoadedConfig& loaded,
          const TrainerOptions& options = {});
  ~Trainer();

  /// Trains to the last step. Returns ExitCode::success, or ExitCode::requeue when a signal stopped it after
  /// a checkpoint. Throws NonFiniteError when the loss stops being finite
  /// (train.on_nonfinite: stop), or ten steps in a row or the last one were not finite (skip). Metrics that cannot
  /// be written (a full disk) do not end a run: the console warns at the first and at the end.
  ExitCode run();

  AnyTrainingRun& training() { return *run_; }
  std::int64_t steps_done() const { return state_.step; }
  const EvalResult& last_evaluation() const { return last_evaluation_; }

 private:
  void resume(const TrainerOptions& options);
  void check_belongs(const LoadedCheckpoint& checkpoint, const TrainerOptions& options) const;
  void write_run_files() const;
  void open_console();
  ExitCode loop();
  void train_step();
  /// Seconds spent capturing since the last call.
  double captured_since_last();
  void report_graphs(double capture_seconds);
  /// The warnings of all ranks go to console and metrics. Collective.
  void report_warnings(const std::vector<std::string>& mine, bool any);
  std::vector<std::string> take_warnings();
  void warn_if_nothing_was_captured();
  template <class Metrics>
  void record(const Metrics& metrics);
  void evaluate();
  void save(const std::string& why);
  void note(const std::string& text);

  Communicator communicator_;
  Runtime& runtime_;
  const LoadedConfig& loaded_;
  const RunConfig& config_;
  SignalWatch signals_;                   // before the data: a signal while loading counts
  std::unique_ptr<train::RunLock> lock_;  // rank 0
  std::unique_ptr<AnyTrainingRun> run_;
  TrainingState state_;
  double bytes_per_token_ = 0.0;
  std::optional<std::string> resumed_from_;
  std::int64_t first_step_ = 0;
  std::int64_t saved_step_ = -1;
  std::int64_t skipped_in_a_row_ = 0;
  std::int64_t metrics_failures_ = 0;
  EvalResult last_evaluation_;
  std::optional<OffloadMetrics> last_offload_;
  double earlier_seconds_ = 0.0;
  double capture_seconds_ = 0.0;
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Console> console_;        // rank 0
  std::unique_ptr<MetricsWriter> metrics_;  // rank 0
};

}  // namespace deltaport
