// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "deltaport/comm/communicator.hpp"
#include "deltaport/config/run_config.hpp"
#include "deltaport/core/context.hpp"
#include "deltaport/data/batch_loader.hpp"
#include "deltaport/data/sample_source.hpp"
#include "deltaport/model/hybrid_lm.hpp"
#include "deltaport/optim/adamw.hpp"

namespace deltaport {

class RunOffload;

/// The model options that a configuration asks for.
LmOptions lm_options(const RunConfig& config);

/// What one optimizer step did. All figures are those of the whole job, the same on every rank.
struct StepResult {
  double loss = 0.0;       ///< nats per valid token
  double grad_norm = 0.0;  ///< before clipping
  double lr = 0.0;
  std::int64_t tokens = 0;        ///< input tokens
  std::int64_t valid_tokens = 0;  ///< tokens with a label
  bool finite = true;             ///< loss and norm were finite; when not, the update was skipped
};

struct EvalResult {
  double loss = 0.0;  ///< nats per valid token
  std::int64_t valid_tokens = 0;
};

/// Model, optimizer and data of one run: everything that one optimizer step needs, and nothing about files,
/// signals or the console. Collective: every rank constructs it and calls it in the same order.
template <class T>
class TrainingRun {
 public:
  /// Opens the data, allocates model and optimizer in the runtime's arena and initialises the weights from
  /// run.seed. Throws ConfigError (rank count does not divide the batch), DataError, OutOfMemory.
  /// With offload.enabled also makes the pool of host memory.
  TrainingRun(const Communicator& communicator, Runtime& runtime, const RunConfig& config);
  ~TrainingRun();

  /// Runs optimizer step `step` (counted from 0) on the samples that belong to it. Steps must follow each
  /// other, except after seek(). The loss is divided by the valid tokens of the whole step over all ranks.
  /// Waits for the result.
  StepResult step(std::int64_t step);
  /// The next call of step() will be for this step: the loader starts reading there.
  void seek(std::int64_t step);

  /// Loss over the first eval.batches samples of data.valid, split over the ranks. Changes no training state.
  /// Throws ConfigError when data.valid is empty.
  EvalResult evaluate();
  bool has_validation() const { return validation_ != nullptr; }

  HybridLm<T>& model() { return *model_; }
  AdamW<T>& optimizer() { return *optimizer_; }
  const SampleSource& samples() const { return *train_; }
  const StepPlan& plan() const { return plan_; }
  Runtime& runtime() { return runtime_; }
  const RunConfig& config() const { return config_; }
  /// nullptr unless offload.enabled.
  RunOffload* offload() { return offload_.get(); }

 private:
  void run_micro_batch(const Batch& batch, double gradient_scale);
  double total_loss();

  Communicator communicator_;
  Runtime& runtime_;
  RunConfig config_;
  StepPlan plan_;
  std::unique_ptr<SampleSource> train_;
  std::unique_ptr<SampleSource> validation_;
  std::unique_ptr<HybridLm<T>> model_;
  std::unique_ptr<AdamW<T>> optimizer_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<RunOffload> offload_;
  SavedTensors saved_;
  Tensor<double> loss_sum_;
  std::int64_t next_step_ = -1;
};

}  // namespace deltaport
