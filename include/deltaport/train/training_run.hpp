// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "deltaport/checkpoint/training_state.hpp"
#include "deltaport/comm/communicator.hpp"
#include "deltaport/config/run_config.hpp"
#include "deltaport/core/context.hpp"
#include "deltaport/data/batch_loader.hpp"
#include "deltaport/data/sample_source.hpp"
#include "deltaport/graph/graph_segments.hpp"
#include "deltaport/model/hybrid_lm.hpp"
#include "deltaport/optim/adamw.hpp"

namespace deltaport {

class RunOffload;

/// The model options that a configuration asks for.
LmOptions lm_options(const RunConfig& config);
/// Type of weights and activations: train.precision.
Dtype model_dtype(const RunConfig& config);

/// The graph options that a configuration asks for.
graph::Options graph_options(const RunConfig& config);

/// What one optimizer step did. All figures are those of the whole job, the same on every rank.
struct StepResult {
  double loss = 0.0;       ///< nats per valid token
  double grad_norm = 0.0;  ///< before clipping
  double lr = 0.0;
  std::int64_t tokens = 0;        ///< input tokens
  std::int64_t valid_tokens = 0;  ///< tokens with a label
  std::uint64_t input_hash = 0;   ///< of this rank's batches, in order; see batch_hash()
  bool finite = true;             ///< loss and norm were finite; when not, the update was skipped
};

struct EvalResult {
  double loss = 0.0;  ///< nats per valid token
  std::int64_t valid_tokens = 0;
};

/// Model, optimizer and data of one run: everything that one optimizer step needs, and nothing about when
/// files are written, signals or the console. Collective: every rank constructs it and calls it in the same
/// order. This is what does not depend on the precision.
class AnyTrainingRun {
 public:
  virtual ~AnyTrainingRun() = default;

  /// Runs optimizer step `step` (counted from 0) on the samples that belong to it. Steps must follow each
  /// other, except after seek(). The loss is divided by the valid tokens of the whole step over all ranks.
  /// Waits for the result.
  virtual StepResult step(std::int64_t step) = 0;
  /// The next call of step() will be for this step: the loader starts reading there.
  virtual void seek(std::int64_t step) = 0;

  /// Loss over the first eval.batches samples of data.valid, split over the ranks. Changes no training state.
  /// Throws ConfigError when data.valid is empty.
  virtual EvalResult evaluate() = 0;
  virtual bool has_validation() const = 0;

  virtual const SampleSource& samples() const = 0;
  virtual const StepPlan& plan() const = 0;
  /// The captured graphs; nullptr with graph.scope none.
  virtual graph::GraphSegments* graphs() = 0;
  /// nullptr unless offload.enabled.
  virtual RunOffload* offload() = 0;
  virtual Runtime& runtime() = 0;
  virtual const RunConfig& config() const = 0;
  virtual std::int64_t parameter_count() const = 0;

  /// save_training_state(), load_training_state() and resume_training_state() of this run's tensors.
  virtual SavedCheckpoint save(const std::filesystem::path& dir, const TrainingState& state,
                               const RetentionPolicy& retention) = 0;
  virtual LoadedCheckpoint load(const std::filesystem::path& path, Verify verify,
                                const BelongsCheck& check) = 0;
  virtual std::optional<LoadedCheckpoint> resume(const std::filesystem::path& dir, Verify verify,
                                                 const BelongsCheck& check) = 0;
};

/// A run in the precision that the configuration asks for. Collective. Throws as TrainingRun's constructor.
std::unique_ptr<AnyTrainingRun> make_training_run(const Communicator& communicator, Runtime& runtime,
                                                  const RunConfig& config);

/// The run with weights and activations of T: bfloat16, float or double. Takes T from its type, not from
/// train.precision.
template <class T>
class TrainingRun final : public AnyTrainingRun {
 public:
  /// Opens the data, allocates model and optimizer in the runtime's arena and initialises the weights from
  /// run.seed. Throws ConfigError (rank count does not divide the batch; ranks have different settings or data),
  /// DataError, OutOfMemory.
  /// With offload.enabled also makes the pool of host memory.
  TrainingRun(const Communicator& communicator, Runtime& runtime, const RunConfig& config);
  ~TrainingRun();

  StepResult step(std::int64_t step) override;
  void seek(std::int64_t step) override;
  EvalResult evaluate() override;
  bool has_validation() const override { return validation_ != nullptr; }

  HybridLm<T>& model() { return *model_; }
  AdamW<T>& optimizer() { return *optimizer_; }
  const SampleSource& samples() const override { return *train_; }
  const StepPlan& plan() const override { return plan_; }
  graph::GraphSegments* graphs() override { return graphs_.get(); }
  RunOffload* offload() override { return offload_.get(); }
  Runtime& runtime() override { return runtime_; }
  const RunConfig& config() const override { return config_; }
  std::int64_t parameter_count() const override { return model_->parameters().count(); }

  SavedCheckpoint save(const std::filesystem::path& dir, const TrainingState& state,
                       const RetentionPolicy& retention) override;
  LoadedCheckpoint load(const std::filesystem::path& path, Verify verify, const BelongsCheck& check) override;
  std::optional<LoadedCheckpoint> resume(const std::filesystem::path& dir, Verify verify,
                                         const BelongsCheck& check) override;

 private:
  void run_micro_batch(const Batch& batch);
  Tensor<double> update(double lr);
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
  Tensor<double> gradient_scale_;
  std::unique_ptr<graph::GraphSegments> graphs_;
  std::int64_t next_step_ = -1;
};

}  // namespace deltaport
