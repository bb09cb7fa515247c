// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltaport {

/// Kind of token mixer in one layer.
enum class LayerType { gdn, gdn2, attention };

/// Heads of the GDN and GDN2 mixers. num_value_heads is a multiple of num_key_heads.
struct LinearMixerConfig {
  std::int64_t num_key_heads = 4;
  std::int64_t num_value_heads = 4;
  std::int64_t key_head_dim = 64;
  std::int64_t value_head_dim = 64;
  std::int64_t conv_kernel = 4;
  std::int64_t chunk_size = 64;
};

struct AttentionConfig {
  std::int64_t num_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 64;
  double partial_rotary_factor = 0.25;
  double rope_theta = 10000000.0;
};

/// Dimensions of the hybrid language model (names as in Hugging Face's config.json).
struct ModelConfig {
  std::string preset = "none";
  std::int64_t vocab_size = 257;
  std::int64_t hidden_size = 256;
  std::int64_t num_hidden_layers = 4;
  std::int64_t intermediate_size = 896;
  /// Repeated until num_hidden_layers entries are reached.
  std::vector<LayerType> layer_pattern = {LayerType::gdn, LayerType::gdn, LayerType::gdn,
                                          LayerType::attention};
  LinearMixerConfig linear;
  AttentionConfig attention;
  bool tie_word_embeddings = true;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  /// Folder that a new run takes its weights from: a Hugging Face checkpoint, a checkpoint of ours, or a folder of
  /// those; "none": random ones.
  std::string init_from = "none";

  /// Mixer of layer i.
  LayerType layer_type(std::int64_t i) const {
    return layer_pattern[static_cast<std::size_t>(i) % layer_pattern.size()];
  }
};

struct DataSource {
  std::string path;  ///< prefix of PATH.bin and PATH.idx
  double weight = 1.0;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<DataSource> valid;
  std::int64_t seq_len = 1024;  ///< tokens per sample
  bool shuffle = true;
};

/// Type of weights and activations. With bfloat16, master weights, gradients, moments and every sum stay
/// float32.
enum class Precision { float32, bfloat16 };

enum class OnNonFinite { stop, skip };

struct TrainConfig {
  std::int64_t steps = 100;
  Precision precision = Precision::float32;
  std::int64_t global_batch_tokens = 8192;  ///< input tokens of one optimizer step over all ranks
  std::int64_t micro_batch = 1;             ///< samples per forward and backward of one rank
  double grad_clip = 1.0;                   ///< global-norm limit; 0 switches clipping off
  std::int64_t loss_chunk_tokens = 1024;    ///< rows of logits alive at once
  OnNonFinite on_nonfinite = OnNonFinite::stop;
};

struct OptimizerConfig {
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< applied to matrices only
};

enum class ScheduleName { constant, cosine, wsd };

struct ScheduleConfig {
  ScheduleName name = ScheduleName::cosine;
  std::int64_t warmup = 10;   ///< steps of linear warm-up
  double min_lr_ratio = 0.1;  ///< final learning rate over peak
  std::int64_t decay = 0;     ///< wsd: steps of the final decay
};

enum class RecurrenceName { automatic, reference, portable, host, cuda };

struct RecurrenceConfig {
  RecurrenceName implementation = RecurrenceName::automatic;
};

enum class AttentionName { automatic, portable, cudnn };

/// How the core of attention layers is computed; their sizes are the model's (AttentionConfig).
struct AttentionKernels {
  AttentionName implementation = AttentionName::automatic;
};

/// Names of graph::Scope and graph::OnFailure.
enum class GraphScope { none, attention, layer, step };
enum class OnCaptureFailure { error, eager };

struct GraphConfig {
  GraphScope scope = GraphScope::none;
  std::int64_t warmup_steps = 1;  ///< eager steps before the capture
  OnCaptureFailure on_failure = OnCaptureFailure::error;
  std::int64_t max_shapes = 8;  ///< input shapes that are captured, each with memory of its own
};

/// Which inputs of the recurrence backward computes again.
enum class CoreInputsAgain { none, gates, all };

/// What backward computes again instead of forward saving it.
struct RecomputeConfig {
  bool gdn_norm_out = true;
  CoreInputsAgain gdn_core_inputs = CoreInputsAgain::gates;
  bool gdn_preparation = true;
};

/// Groups of saved tensors that may move to the host.
enum class OffloadScope { gdn_core_attn, norm_out, attn_core, mlp };

struct OffloadConfig {
  bool enabled = false;
  std::vector<OffloadScope> scopes = {OffloadScope::gdn_core_attn};
  double fraction = 1.0;  ///< of the eligible groups; the latest stay
  std::int64_t min_tensor_elements = std::int64_t{1} << 20;
  std::int64_t keep_last = 0;     ///< last groups that stay; 0: as many as `slots`
  std::int64_t slots = 2;         ///< groups whose device memory waits for its copy
  std::int64_t max_inflight = 0;  ///< copies to the host under way; 0: as many as slots
  bool delayed = false;           ///< transfers are enqueued between layers only
  std::int64_t pinned_limit = 0;  ///< bytes of one rank; 0: nine tenths of what control group and nodes leave
  bool strict_numa = false;       ///< host memory that is not near the device is an error
};

struct CheckpointConfig {
  std::string dir;              ///< default: <run.dir>/checkpoints
  std::int64_t every = 0;       ///< steps between checkpoints; 0: only at the end
  std::int64_t keep_last = 2;   ///< checkpoints kept, at least 2
  std::string resume = "none";  ///< none | auto | path of a checkpoint directory
  bool verify_hashes = true;    ///< check content hashes when loading
};

struct EvalConfig {
  std::int64_t every = 0;     ///< steps between evaluations; 0: only start and end
  std::int64_t batches = 16;  ///< samples of data.valid per evaluation (all if fewer)
  bool at_start = true;
  bool at_end = true;
};

struct LoggingConfig {
  std::int64_t every = 1;  ///< steps between console lines
  bool jsonl = true;       ///< write metrics.jsonl into run.dir
  bool progress = true;    ///< progress bar when standard error is a terminal
};

struct RunSection {
  std::string name = "run";
  std::string dir = "runs/run";
  std::uint64_t seed = 1234;
};

/// Everything one YAML file says, after presets, files, environment and command line were merged and checked.
struct RunConfig {
  std::int64_t version = 1;
  RunSection run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  RecurrenceConfig recurrence;
  AttentionKernels attention;
  GraphConfig graph;
  RecomputeConfig recompute;
  OffloadConfig offload;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  LoggingConfig logging;
};

}  // namespace deltaport
