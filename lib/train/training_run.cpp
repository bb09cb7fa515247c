// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/training_run.hpp"

#include <bit>
#include <cmath>
#include <vector>

#include "deltaport/checkpoint/hugging_face.hpp"
#include "deltaport/config/checks.hpp"
#include "deltaport/data/batch_hash.hpp"
#include "deltaport/optim/global_norm.hpp"
#include "deltaport/optim/schedule.hpp"
#include "deltaport/train/run_offload.hpp"
#include "train/rank_agreement.hpp"

namespace deltaport {
namespace {

recurrence::Implementation implementation_of(RecurrenceName name) {
  switch (name) {
    case RecurrenceName::reference:
      return recurrence::Implementation::reference;
    case RecurrenceName::portable:
      return recurrence::Implementation::portable;
    case RecurrenceName::host:
      return recurrence::Implementation::host;
    case RecurrenceName::cuda:
      return recurrence::Implementation::cuda;
    default:
      return recurrence::Implementation::automatic;
  }
}

AttentionImplementation implementation_of(AttentionName name) {
  switch (name) {
    case AttentionName::portable:
      return AttentionImplementation::portable;
    case AttentionName::cudnn:
      return AttentionImplementation::cudnn;
    default:
      return AttentionImplementation::automatic;
  }
}

CoreInputs core_inputs_of(CoreInputsAgain again) {
  switch (again) {
    case CoreInputsAgain::all:
      return CoreInputs::recompute;
    case CoreInputsAgain::gates:
      return CoreInputs::recompute_gates;
    default:
      return CoreInputs::save;
  }
}

SampleOptions sample_options(const RunConfig& config, SampleOrder order) {
  return {config.data.seq_len, config.model.vocab_size, config.run.seed, order};
}

struct DeviceBatch {
  Tensor<std::int32_t> tokens;
  Tensor<std::int32_t> labels;
  Sequences sequences;
};

// The number of documents differs from batch to batch. Empty ones at the end, up to a power of two, leave few shapes to
// be captured, and change no result.
std::vector<std::int32_t> with_empty_sequences(std::vector<std::int32_t> cu_seqlens) {
  const std::size_t count = std::bit_ceil(cu_seqlens.size() - 1);
  cu_seqlens.resize(count + 1, cu_seqlens.back());
  return cu_seqlens;
}

DeviceBatch upload(Runtime& runtime, const Batch& batch, const graph::GraphSegments* graphs) {
  WorkScope scope(runtime, Work::data, "deltaport: upload batch");
  const Shape shape{static_cast<std::int64_t>(batch.tokens.size())};
  DeviceBatch result{
      from_vector(runtime.compute(), runtime.arena(), "tokens", shape, batch.tokens),
      from_vector(runtime.compute(), runtime.arena(), "labels", shape, batch.labels),
      make_sequences(runtime, graphs != nullptr ? with_empty_sequences(batch.cu_seqlens) : batch.cu_seqlens,
                     shape[0])};
  result.sequences.row_tokens = batch.seq_len;
  return result;
}

// A run that goes on has its weights from its checkpoint; the folder that it began from may be gone by then.
bool begins_from_a_folder(const Communicator& communicator, const RunConfig& config) {
  if (config.model.init_from == "none") return false;
  std::int64_t goes_on = 0;
  communicator.agree([&] {
    const CheckpointConfig& checkpoint = config.checkpoint;
    if (!communicator.is_root() || checkpoint.resume == "none") return;
    const std::string own = checkpoint.dir.empty() ? config.run.dir + "/checkpoints" : checkpoint.dir;
    goes_on = checkpoint.resume != "auto" || find_latest(own) ? 1 : 0;
  });
  return communicator.max(goes_on) == 0;
}

}  // namespace

LmOptions lm_options(const RunConfig& config) {
  return {config.train.loss_chunk_tokens,
          implementation_of(config.recurrence.implementation),
          config.recompute.gdn_norm_out ? NormOutput::recompute : NormOutput::save,
          implementation_of(config.attention.implementation),
          core_inputs_of(config.recompute.gdn_core_inputs),
          config.recompute.gdn_preparation ? Preparation::recompute : Preparation::save};
}

Dtype model_dtype(const RunConfig& config) {
  return config.train.precision == Precision::bfloat16 ? Dtype::bf16 : Dtype::f32;
}

std::unique_ptr<AnyTrainingRun> make_training_run(const Communicator& communicator, Runtime& runtime,
                                                  const RunConfig& config) {
  if (model_dtype(config) == Dtype::bf16)
    return std::make_unique<TrainingRun<bfloat16>>(communicator, runtime, config);
  return std::make_unique<TrainingRun<float>>(communicator, runtime, config);
}
graph::Options graph_options(const RunConfig& config) {
  graph::Options options;
  options.scope = static_cast<graph::Scope>(config.graph.scope);
  options.warmup_steps = config.graph.warmup_steps;
  options.on_failure =
      config.graph.on_failure == OnCaptureFailure::eager ? graph::OnFailure::eager : graph::OnFailure::error;
  options.max_shapes = config.graph.max_shapes;
  return options;
}
static_assert(static_cast<int>(GraphScope::none) == static_cast<int>(graph::Scope::none) &&
              static_cast<int>(GraphScope::attention) == static_cast<int>(graph::Scope::attention) &&
              static_cast<int>(GraphScope::layer) == static_cast<int>(graph::Scope::layer) &&
              static_cast<int>(GraphScope::step) == static_cast<int>(graph::Scope::step));

template <class T>
TrainingRun<T>::TrainingRun(const Communicator& communicator, Runtime& runtime, const RunConfig& config)
    : communicator_(communicator), runtime_(runtime), config_(config) {
  train::check_same_config(communicator, config);
  check_ranks(config, communicator.size());
  plan_ = {config.train.global_batch_tokens / config.data.seq_len, config.train.micro_batch,
           communicator.size()};
  const SampleOrder order = config.data.shuffle ? SampleOrder::shuffled : SampleOrder::in_order;
  communicator.agree([&] {
    train_ = std::make_unique<SampleSource>(config.data.train, sample_options(config, order));
    if (!config.data.valid.empty())
      validation_ =
          std::make_unique<SampleSource>(config.data.valid, sample_options(config, SampleOrder::sequential));
  });
  train::check_same_data(communicator, "data.train", train_->fingerprint());
  if (validation_ != nullptr) train::check_same_data(communicator, "data.valid", validation_->fingerprint());
  model_ = std::make_unique<HybridLm<T>>(config.model, lm_options(config));
  model_->parameters().allocate(runtime);
  model_->parameters().initialize(runtime, config.run.seed);
  if (begins_from_a_folder(communicator, config))
    communicator.agree([&] {
      const Verify verify = config.checkpoint.verify_hashes ? Verify::hashes : Verify::sizes;
      load_initial_weights(runtime, config.model.init_from, verify, config.model, model_->parameters());
    });
  optimizer_ =
      std::make_unique<AdamW<T>>(runtime, model_->parameters(), config.optimizer, config.train.grad_clip);
  loss_sum_ = runtime.allocate_zero<double>("loss sum", Shape{1});
  gradient_scale_ = runtime.allocate_zero<double>("gradient scale", Shape{1});
  const graph::Options graphs = graph_options(config);
  if (graphs.scope != graph::Scope::none) graphs_ = std::make_unique<graph::GraphSegments>(runtime, graphs);
  if (!config.offload.enabled) return;
  communicator.agree([&] {
    offload_ = std::make_unique<RunOffload>(communicator, runtime, config.offload, config.graph.scope);
  });
  saved_.set_mover(&offload_->mover());
}

template <class T>
TrainingRun<T>::~TrainingRun() = default;

template <class T>
void TrainingRun<T>::seek(std::int64_t step) {
  loader_.reset();
  loader_ = std::make_unique<BatchLoader>(*train_, plan_, communicator_.rank(), step);
  next_step_ = step;
}

template <class T>
StepResult TrainingRun<T>::step(std::int64_t step) {
  if (step != next_step_) seek(step);
  next_step_ = step + 1;
  ParameterSet<T>& parameters = model_->parameters();

  StepResult result;
  result.tokens = plan_.global_samples * config_.data.seq_len;
  result.lr = learning_rate(config_.schedule, config_.optimizer.lr, config_.train.steps, step);
  // The divisor comes from the data alone, before any forward, so that every micro-batch of every rank can
  // use it.
  result.valid_tokens = train_->valid_tokens(step * plan_.global_samples, plan_.global_samples);
  const double gradient_scale =
      result.valid_tokens > 0 ? 1.0 / static_cast<double>(result.valid_tokens) : 0.0;

  parameters.zero_gradients(runtime_);
  set_zero(runtime_.compute(), loss_sum_);
  fill(runtime_.compute(), gradient_scale_, gradient_scale);
  for (std::int64_t i = 0; i < plan_.micro_batches(); ++i) {
    const Batch batch = loader_->next();
    result.input_hash = batch_hash(batch, result.input_hash);
    run_micro_batch(batch);
  }

  communicator_.sum_gradients(runtime_, parameters.flat_gradients());
  const Tensor<double> norm = update(result.lr);
  if (graphs_) graphs_->step_done();

  copy_to_host(runtime_.compute(), &result.grad_norm, norm);
  const double loss_sum = total_loss();
  result.loss = result.valid_tokens > 0 ? loss_sum / static_cast<double>(result.valid_tokens) : 0.0;
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  return result;
}

template <class T>
void TrainingRun<T>::run_micro_batch(const Batch& batch) {
  const DeviceBatch device = upload(runtime_, batch, graphs_.get());
  Context context{runtime_, saved_, Mode::train, graphs_.get()};
  model_->forward_backward(context, device.tokens, device.labels, device.sequences, gradient_scale_,
                           loss_sum_);
}

/// Norm and update: one segment of level step. The gradients, moments and weights stay where they are.
template <class T>
Tensor<double> TrainingRun<T>::update(double lr) {
  optimizer_->set_rate(runtime_, lr);
  Context context{runtime_, saved_, Mode::train, graphs_.get()};
  SegmentPass pass(context, "update", {});
  const auto& gradients = model_->parameters().flat_gradients();
  const auto body = [&](const AnyTensors&) -> AnyTensors {
    const Tensor<double> norm = global_norm(runtime_, gradients);
    optimizer_->update(runtime_, norm);
    return {norm};
  };
  const Tensor<double> norm =
      run_segment(context, SegmentLevel::step, "update", {}, {gradients}, body)[0].template as<double>();
  pass.end();
  return norm;
}

template <class T>
double TrainingRun<T>::total_loss() {
  double sum = 0.0;
  copy_to_host(runtime_.compute(), &sum, loss_sum_);
  return communicator_.sum(sum);
}

template <class T>
EvalResult TrainingRun<T>::evaluate() {
  DELTAPORT_VALIDATE(validation_ != nullptr, ConfigError, "evaluation asked for, but data.valid is empty");
  const std::int64_t samples = std::min(config_.eval.batches, validation_->samples());
  set_zero(runtime_.compute(), loss_sum_);
  EvalResult result;
  // Samples are dealt out one at a time: evaluation takes the same memory as one training sample.
  for (std::int64_t i = communicator_.rank(); i < samples; i += communicator_.size()) {
    const Batch batch = validation_->batch(i, 1);
    const DeviceBatch device = upload(runtime_, batch, nullptr);
    Context context{runtime_, saved_, Mode::evaluate};
    model_->evaluate(context, device.tokens, device.labels, device.sequences, loss_sum_);
    result.valid_tokens += batch.valid_tokens;
  }
  result.valid_tokens = communicator_.sum(result.valid_tokens);
  const double loss_sum = total_loss();
  result.loss = result.valid_tokens > 0 ? loss_sum / static_cast<double>(result.valid_tokens) : 0.0;
  return result;
}

template <class T>
SavedCheckpoint TrainingRun<T>::save(const std::filesystem::path& dir, const TrainingState& state,
                                     const RetentionPolicy& retention) {
  return save_training_state(communicator_, runtime_, dir, state, model_->parameters(), *optimizer_,
                             retention);
}

template <class T>
LoadedCheckpoint TrainingRun<T>::load(const std::filesystem::path& path, Verify verify,
                                      const BelongsCheck& check) {
  return load_training_state(communicator_, runtime_, path, verify, model_->parameters(), *optimizer_, check);
}

template <class T>
std::optional<LoadedCheckpoint> TrainingRun<T>::resume(const std::filesystem::path& dir, Verify verify,
                                                       const BelongsCheck& check) {
  return resume_training_state(communicator_, runtime_, dir, verify, model_->parameters(), *optimizer_,
                               check);
}

template class TrainingRun<bfloat16>;
template class TrainingRun<float>;
template class TrainingRun<double>;

}  // namespace deltaport
