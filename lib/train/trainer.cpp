// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "deltaport/config/checks.hpp"
#include "deltaport/config/names.hpp"
#include "deltaport/config/schema.hpp"
#include "deltaport/config/suggest.hpp"
#include "deltaport/core/version.hpp"
#include "deltaport/data/metadata.hpp"
#include "deltaport/train/run_offload.hpp"
#include "train/number_format.hpp"
#include "train/rank_agreement.hpp"
#include "train/rank_lines.hpp"
#include "train/run_files.hpp"

namespace deltaport {

using train::original_name;
using train::with_thousands;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

constexpr std::int64_t most_skipped_in_a_row = 10;

// The tokenizer that all sources were prepared with; "unknown" when they differ or do not say.
std::string tokenizer_of(const DataConfig& data) {
  std::string name;
  for (const DataSource& source : data.train) {
    const auto metadata = read_metadata(source.path);
    const std::string own = metadata ? metadata->tokenizer : "unknown";
    if (!name.empty() && name != own) return "unknown";
    name = own;
  }
  return name;
}

// A prepared data set says its largest id: a vocabulary that is too small shows before the first step.
void check_vocabulary(const DataConfig& data, std::int64_t vocab_size) {
  for (const auto* sources : {&data.train, &data.valid})
    for (const DataSource& source : *sources) {
      const auto metadata = read_metadata(source.path);
      DELTAPORT_VALIDATE(!metadata || metadata->max_id < vocab_size, DataError, source.path,
                         ".meta.json: token id ", metadata->max_id, " does not fit model.vocab_size ",
                         vocab_size);
    }
}

// Key names come from a command line: say what was probably meant.
void check_allowed_changes(const std::vector<std::string>& allowed) {
  const auto keys = key_paths();
  for (const std::string& key : allowed) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::string guess = config::nearest(key, keys);
    throw ConfigError(
        concat("--allow-config-change: '", key, "' is no key of the configuration; ",
               guess.empty() ? "deltaport validate --help lists them" : "did you mean '" + guess + "'?"));
  }
}

// Nothing is written before the ranks agree on where.
std::unique_ptr<train::RunLock> lock_run(const Communicator& communicator, const RunConfig& config) {
  train::check_same_config(communicator, config);
  std::unique_ptr<train::RunLock> lock;
  communicator.agree([&] {
    if (communicator.is_root()) lock = std::make_unique<train::RunLock>(config.run.dir);
  });
  return lock;
}

}  // namespace

std::string checkpoint_folder(const RunConfig& config) {
  return config.checkpoint.dir.empty() ? config.run.dir + "/checkpoints" : config.checkpoint.dir;
}

Trainer::Trainer(const Communicator& communicator, Runtime& runtime, const LoadedConfig& loaded,
                 const TrainerOptions& options)
    : communicator_(communicator),
      runtime_(runtime),
      loaded_(loaded),
      config_(loaded.config),
      signals_(loaded.config.run.dir),
      lock_(lock_run(communicator, loaded.config)),
      run_(make_training_run(communicator, runtime, loaded.config)),
      start_(std::chrono::steady_clock::now()) {
  check_allowed_changes(options.allowed_changes);
  communicator.agree([&] {
    check_vocabulary(config_.data, config_.model.vocab_size);
    const std::string tokenizer = tokenizer_of(config_.data);
    state_.extra_json = nlohmann::json{{"tokenizer", tokenizer}}.dump();
    // A token of the byte tokenizer is a byte; other tokenizers have no fixed ratio.
    bytes_per_token_ = tokenizer == "byte" ? 1.0 : 0.0;
  });
  state_.seed = config_.run.seed;
  state_.fingerprint = run_->samples().fingerprint();
  state_.config_yaml = loaded.canonical_yaml();
  // Numbered in the order they were merged: two folders may hold files of the same name.
  for (std::size_t i = 0; i < loaded.files.size(); ++i)
    state_.config_files[original_name(i, loaded.files[i])] = loaded.files[i].text;
  resume(options);
  communicator.agree([&] {
    if (!communicator.is_root()) return;
    write_run_files();
    open_console();
  });
}

Trainer::~Trainer() = default;

void Trainer::resume(const TrainerOptions& options) {
  const std::string& from = config_.checkpoint.resume;
  if (from == "none") {
    communicator_.agree([&] {
      const bool used =
          communicator_.is_root() && train::holds_earlier_run(config_.run.dir, checkpoint_folder(config_));
      DELTAPORT_VALIDATE(!used, ConfigError, config_.run.dir,
                         " holds an earlier run; go on with --resume, or choose another run.dir");
    });
    return;
  }
  const Verify verify = config_.checkpoint.verify_hashes ? Verify::hashes : Verify::sizes;
  std::optional<LoadedCheckpoint> checkpoint;
  const auto check = [&](const LoadedCheckpoint& candidate) { check_belongs(candidate, options); };
  if (from == "auto")
    checkpoint = run_->resume(checkpoint_folder(config_), verify, check);
  else
    checkpoint = run_->load(from, verify, check);
  if (!checkpoint) {
    communicator_.agree([&] {
      if (communicator_.is_root()) train::check_nothing_is_lost(config_.run.dir, checkpoint_folder(config_));
    });
    return;
  }
  state_.step = checkpoint->state.step;
  state_.consumed_samples = checkpoint->state.consumed_samples;
  state_.tokens = checkpoint->state.tokens;
  state_.loss = checkpoint->state.loss;
  state_.loss_ema = checkpoint->state.loss_ema;
  earlier_seconds_ = checkpoint->state.wall_seconds;
  resumed_from_ = checkpoint->path.string();
  saved_step_ = state_.step;
}

void Trainer::check_belongs(const LoadedCheckpoint& checkpoint, const TrainerOptions& options) const {
  const RunConfig before = parse_canonical(checkpoint.state.config_yaml, "the checkpoint's configuration");
  std::string report;
  for (const IdentityDifference& difference : identity_differences(before, config_)) {
    const auto& allowed = options.allowed_changes;
    if (std::find(allowed.begin(), allowed.end(), difference.path) != allowed.end()) continue;
    report += concat("\n  ", difference.path, ": ", difference.before, " in the checkpoint, ",
                     difference.after, " now");
  }
  DELTAPORT_VALIDATE(
      report.empty(), ConfigError, "the configuration is not that of ", checkpoint.path.string(), ":", report,
      "\nput the old values back, start a new run.dir, or allow it with --allow-config-change=KEY,...");
  DELTAPORT_VALIDATE(checkpoint.state.fingerprint == state_.fingerprint, ConfigError,
                     "the training data has changed since ", checkpoint.path.string(),
                     " was written (fingerprint ", checkpoint.state.fingerprint, ", now ", state_.fingerprint,
                     "): a resumed run would see other samples. Put the data back or start a new run.dir");
}

void Trainer::write_run_files() const {
  train::write_run_files(config_.run.dir, loaded_);
}

void Trainer::open_console() {
  const auto steps = config_.train.steps;
  const auto& plan = run_->plan();
  console_ =
      std::make_unique<Console>(ConsoleOptions{.bar = config_.logging.progress ? Show::automatic : Show::off,
                                               .total_steps = steps,
                                               .every = config_.logging.every,
                                               .bytes_per_token = bytes_per_token_});
  const std::int64_t parameters = run_->parameter_count();
  const auto& model = config_.model;
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", concat(with_thousands(parameters), " parameters, ", model.num_hidden_layers,
                       " layers, hidden ", model.hidden_size, ", vocabulary ",
                       with_thousands(model.vocab_size), ", ", name_of(config_.train.precision))},
      {"data", concat(with_thousands(run_->samples().tokens()), " tokens, ",
                      with_thousands(run_->samples().samples()), " samples of ",
                      with_thousands(config_.data.seq_len))},
      {"step", concat(with_thousands(plan.global_samples * config_.data.seq_len), " tokens = ", plan.ranks,
                      " ranks x ", plan.micro_batches(), " micro-batches x ", plan.micro_batch, " x ",
                      config_.data.seq_len)},
      {"run", concat(config_.run.dir, resumed_from_ ? ", resumed from " + *resumed_from_ : std::string())}};
  if (run_->offload() != nullptr) rows.emplace_back("offload", run_->offload()->description());
  console_->banner(concat("deltaport ", version, ": ", config_.run.name), rows);
  if (!config_.logging.jsonl) return;
  metrics_ = std::make_unique<MetricsWriter>(
      config_.run.dir + "/metrics.jsonl",
      RunMetrics{config_.run.name, version, parameters, communicator_.size(), steps, bytes_per_token_,
                 std::string(name_of(config_.train.precision))},
      resumed_from_ ? std::optional<std::int64_t>(state_.step) : std::nullopt);
}

ExitCode Trainer::run() {
  const ExitCode code = loop();
  if (metrics_failures_ > 0 && console_)
    console_->warning(concat(metrics_failures_, " records are missing in ", config_.run.dir,
                             "/metrics.jsonl: they could not be written (see the first warning above)"));
  if (code == ExitCode::success && console_) console_->finish();
  return code;
}

ExitCode Trainer::loop() {
  first_step_ = state_.step;
  if (config_.eval.at_start && state_.step == 0) evaluate();
  while (state_.step < config_.train.steps) {
    train_step();
    const auto due = [this](std::int64_t every) { return every > 0 && state_.step % every == 0; };
    const bool last = state_.step == config_.train.steps;
    if (!last && due(config_.eval.every)) evaluate();
    const Decision decision = signals_.decide(communicator_);
    if (decision.request != Request::none && !last) {
      save(decision.cause);
      if (decision.request == Request::checkpoint_and_stop) {
        note(concat("stopped by ", decision.cause, " after step ", state_.step, "; go on with --resume"));
        return ExitCode::requeue;
      }
    } else if (!last && due(config_.checkpoint.every)) {
      save("");
    }
  }
  if (config_.eval.at_end) evaluate();
  DELTAPORT_VALIDATE(skipped_in_a_row_ == 0, NonFiniteError, "the run ended on ", skipped_in_a_row_,
                     " steps that were not finite; no checkpoint was written after them");
  save("");
  warn_if_nothing_was_captured();
  if (last_offload_) note(run_->offload()->summary(*last_offload_));
  return ExitCode::success;
}

void Trainer::train_step() {
  const auto begin = std::chrono::steady_clock::now();
  const StepResult result = run_->step(state_.step);
  StepMetrics metrics;
  metrics.step = ++state_.step;
  metrics.loss = result.loss;
  metrics.grad_norm = result.grad_norm;
  metrics.lr = result.lr;
  metrics.tokens = result.tokens;
  metrics.valid_tokens = result.valid_tokens;
  metrics.tokens_total = state_.tokens += result.tokens;
  const double wall = seconds_since(begin);
  metrics.seconds = wall - captured_since_last();
  if (run_->offload() != nullptr)
    last_offload_ = run_->offload()->take_metrics(metrics.step, metrics.seconds);
  const std::vector<std::string> warnings = take_warnings();
  const ArenaStats memory = runtime_.arena().stats();
  std::int64_t most[] = {static_cast<std::int64_t>(memory.allocated_peak),
                         static_cast<std::int64_t>(memory.reserved_peak), warnings.empty() ? 0 : 1};
  communicator_.all_reduce_max(most, 3);
  metrics.memory_allocated_bytes = most[0];
  metrics.memory_reserved_bytes = most[1];
  runtime_.arena().reset_peak();

  state_.consumed_samples += run_->plan().global_samples;
  state_.lr = result.lr;
  if (result.finite) {
    state_.loss = result.loss;
    state_.loss_ema = state_.step == 1 ? result.loss : 0.95 * state_.loss_ema + 0.05 * result.loss;
  }
  record(metrics);
  if (console_) console_->step(metrics);
  report_graphs(wall - metrics.seconds);
  if (last_offload_) record(*last_offload_);
  report_warnings(warnings, most[2] != 0);
  skipped_in_a_row_ = result.finite ? 0 : skipped_in_a_row_ + 1;
  if (result.finite) return;
  DELTAPORT_VALIDATE(config_.train.on_nonfinite == OnNonFinite::skip, NonFiniteError, "step ", state_.step,
                     ": loss ", train::formatted("%g", result.loss), ", gradient norm ",
                     train::formatted("%g", result.grad_norm),
                     ". The update was not applied. Lower optimizer.lr, lengthen schedule.warmup, or set "
                     "train.on_nonfinite: skip");
  DELTAPORT_VALIDATE(skipped_in_a_row_ < most_skipped_in_a_row, NonFiniteError, "step ", state_.step, ": ",
                     skipped_in_a_row_,
                     " updates in a row were skipped because loss or gradient norm was not finite; "
                     "the weights do not recover. Go on from the last checkpoint with a lower optimizer.lr");
  note(concat("step ", state_.step, ": loss or gradient norm is not finite, update skipped"));
}

double Trainer::captured_since_last() {
  if (run_->graphs() == nullptr) return 0.0;
  const double total = run_->graphs()->stats().capture_seconds;
  return total - std::exchange(capture_seconds_, total);
}

void Trainer::report_graphs(double capture_seconds) {
  if (run_->graphs() == nullptr) return;
  if (capture_seconds <= 0.0) return;
  const graph::Stats stats = run_->graphs()->stats();
  const GraphMetrics metrics{state_.step, stats.segments, stats.operations,
                             static_cast<std::int64_t>(stats.bytes), capture_seconds};
  record(metrics);
  note(concat("graphs: ", with_thousands(metrics.graphs), " captured, ", with_thousands(metrics.operations),
              " operations, ", train::gib(metrics.bytes), " GiB held, captured in ",
              train::step_time(metrics.capture_seconds), " beside the step's time"));
}

std::vector<std::string> Trainer::take_warnings() {
  std::vector<std::string> warnings;
  if (run_->graphs() != nullptr) warnings = run_->graphs()->take_notes();
  if (run_->offload() != nullptr)
    for (std::string& text : run_->offload()->take_warnings(*last_offload_))
      warnings.push_back(std::move(text));
  return warnings;
}

void Trainer::report_warnings(const std::vector<std::string>& mine, bool any) {
  if (!any) return;
  for (const std::string& text : train::lines_of_ranks(communicator_, mine)) {
    record(WarningMetrics{state_.step, text});
    if (console_) console_->warning(text);
  }
}

// A run may end before its first capture, when it is short or goes on near its end.
void Trainer::warn_if_nothing_was_captured() {
  std::vector<std::string> mine;
  if (run_->graphs() != nullptr && state_.step > first_step_ && run_->graphs()->stats().launches == 0)
    mine.push_back(
        concat("graph.scope = ", name_of(config_.graph.scope), " captured nothing in the ",
               state_.step - first_step_,
               " steps since the start: graph.warmup_steps = ", config_.graph.warmup_steps,
               " of them are eager, and so is the first pass of each input shape and of each plan of "
               "offload's"));
  report_warnings(mine, communicator_.max<std::int64_t>(mine.empty() ? 0 : 1) != 0);
}

void Trainer::evaluate() {
  if (!run_->has_validation()) return;
  const auto begin = std::chrono::steady_clock::now();
  last_evaluation_ = run_->evaluate();
  const EvalMetrics metrics{state_.step, last_evaluation_.loss, last_evaluation_.valid_tokens,
                            seconds_since(begin)};
  record(metrics);
  if (console_) console_->evaluation(metrics);
}

template <class Metrics>
void Trainer::record(const Metrics& metrics) {
  if (!metrics_) return;
  try {
    metrics_->write(metrics);
  } catch (const DataError& e) {
    // Weights are worth more than their curve. Later records are tried again: space may come back.
    if (metrics_failures_++ == 0 && console_)
      console_->warning(concat(e.what(), "; training goes on, such records are left out"));
  }
}

void Trainer::save(const std::string& why) {
  if (saved_step_ == state_.step) return;
  if (skipped_in_a_row_ > 0) {
    // Perhaps the weights are ruined: such a checkpoint must not push out a good one.
    note(concat("no checkpoint at step ", state_.step, ": its loss or gradient norm was not finite"));
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  state_.wall_seconds = earlier_seconds_ + seconds_since(start_);
  RetentionPolicy retention{config_.checkpoint.keep_last, {}};
  if (resumed_from_) retention.loaded_from = *resumed_from_;
  const SavedCheckpoint saved = run_->save(checkpoint_folder(config_), state_, retention);
  saved_step_ = state_.step;
  record(CheckpointMetrics{state_.step});
  for (const std::string& warning : saved.warnings)
    if (console_) console_->warning(warning);
  char text[64];
  std::snprintf(text, sizeof text, " (%.1f MiB, %.2f s)", static_cast<double>(saved.bytes) / 1048576.0,
                seconds_since(begin));
  note(concat("checkpoint ", saved.path.string(), text, why.empty() ? "" : " on " + why));
}

void Trainer::note(const std::string& text) {
  if (console_) console_->note(text);
}

}  // namespace deltaport
