// SPDX-License-Identifier: Apache-2.0
// The one list of keys. A new key is a member of RunConfig and a row here.
#include "config/binding.hpp"
#include "config/field.hpp"
#include "config/presets.hpp"

namespace deltaport::config {
namespace {

using R = RunConfig;
using enum FieldType;
constexpr double max_dimension = 1 << 24;  // products of two stay far below 2^63
constexpr double max_count = 1e12;         // steps, and tokens of a step
constexpr std::string_view chunk_sizes[] = {"16", "32", "64"};

template <auto... p>
constexpr Binding run = bind<&R::run, p...>;
template <auto... p>
constexpr Binding model = bind<&R::model, p...>;
template <auto... p>
constexpr Binding linear = bind<&R::model, &ModelConfig::linear, p...>;
template <auto... p>
constexpr Binding attention = bind<&R::model, &ModelConfig::attention, p...>;
template <auto... p>
constexpr Binding data = bind<&R::data, p...>;
template <auto... p>
constexpr Binding train = bind<&R::train, p...>;
template <auto... p>
constexpr Binding optimizer = bind<&R::optimizer, p...>;
template <auto... p>
constexpr Binding schedule = bind<&R::schedule, p...>;
template <auto... p>
constexpr Binding graph = bind<&R::graph, p...>;
template <auto... p>
constexpr Binding offload = bind<&R::offload, p...>;
template <auto... p>
constexpr Binding checkpoint = bind<&R::checkpoint, p...>;
template <auto... p>
constexpr Binding eval = bind<&R::eval, p...>;
template <auto... p>
constexpr Binding logging = bind<&R::logging, p...>;

constexpr Binding betas{[](const R& c) -> Value {
                          return std::vector<double>{c.optimizer.beta1, c.optimizer.beta2};
                        },
                        [](R& c, const Value& v) {
                          c.optimizer.beta1 = std::get<std::vector<double>>(v)[0];
                          c.optimizer.beta2 = std::get<std::vector<double>>(v)[1];
                        }};

using LM = LinearMixerConfig;
using AM = AttentionConfig;
using OC = OffloadConfig;
constexpr auto same = OnResume::same;
constexpr auto free = OnResume::free;
constexpr Range dimension = between(1, max_dimension);

// clang-format off
std::vector<Field> make_table() {
  return {
      // path, type, unit, range, words, on resume, doc, binding [, default made of other keys, null]
      {"version", integer, "", between(1, 1), {}, free, "version of this file format; always 1",
       bind<&R::version>},

      {"run.name", text, "", {}, {}, free, "name of the run, shown in reports", run<&RunSection::name>},
      {"run.dir", text, "", {}, {}, free, "directory that receives everything the run writes",
       run<&RunSection::dir>, "runs/${run.name}"},
      {"run.seed", integer, "", at_least(0), {}, same, "seed of initial weights and data order",
       run<&RunSection::seed>},

      {"model.preset", word, "", {}, preset_names(), free, "dimensions to start from; keys below override it",
       model<&ModelConfig::preset>},
      {"model.vocab_size", integer, "tokens", dimension, {}, same,
       "rows of the embedding; larger than every token id", model<&ModelConfig::vocab_size>},
      {"model.hidden_size", integer, "", dimension, {}, same, "width of the residual stream",
       model<&ModelConfig::hidden_size>},
      {"model.num_hidden_layers", integer, "layers", between(1, 4096), {}, same, "number of layers",
       model<&ModelConfig::num_hidden_layers>},
      {"model.intermediate_size", integer, "", dimension, {}, same, "inner width of the SwiGLU MLP",
       model<&ModelConfig::intermediate_size>},
      {"model.layer_pattern", words, "", {}, names_of<LayerType>(), same,
       "token mixers in order, repeated until all layers have one", model<&ModelConfig::layer_pattern>},
      {"model.tie_word_embeddings", boolean, "", {}, {}, same, "use the embedding as output matrix as well",
       model<&ModelConfig::tie_word_embeddings>},
      {"model.rms_norm_eps", real, "", between(1e-12, 1), {}, same, "epsilon of all RMS norms",
       model<&ModelConfig::rms_norm_eps>},
      {"model.initializer_range", real, "", {.least = 0, .most = 1, .least_excluded = true}, {}, same,
       "standard deviation of initial matrices", model<&ModelConfig::initializer_range>},

      {"model.init_from", text, "", {}, {}, free,
       "folder that a new run takes its weights from: Hugging Face's or deltaport's; none: random ones",
       model<&ModelConfig::init_from>},

      {"model.linear.num_key_heads", integer, "heads", between(1, 4096), {}, same,
       "query and key heads of GDN and GDN2", linear<&LM::num_key_heads>},
      {"model.linear.num_value_heads", integer, "heads", between(1, 4096), {}, same,
       "value heads of GDN and GDN2; a multiple of num_key_heads", linear<&LM::num_value_heads>},
      {"model.linear.key_head_dim", integer, "", between(1, 4096), {}, same, "width of one query or key head",
       linear<&LM::key_head_dim>},
      {"model.linear.value_head_dim", integer, "", between(1, 4096), {}, same, "width of one value head",
       linear<&LM::value_head_dim>},
      {"model.linear.conv_kernel", integer, "tokens", between(1, 4), {}, same,
       "taps of the short causal convolution", linear<&LM::conv_kernel>},
      {"model.linear.chunk_size", integer, "tokens", {}, chunk_sizes, free,
       "chunk of the portable recurrence", linear<&LM::chunk_size>},

      {"model.attention.num_heads", integer, "heads", between(1, 4096), {}, same,
       "query heads of attention layers", attention<&AM::num_heads>},
      {"model.attention.num_kv_heads", integer, "heads", between(1, 4096), {}, same,
       "key and value heads; divides num_heads", attention<&AM::num_kv_heads>},
      {"model.attention.head_dim", integer, "", between(1, 4096), {}, same, "width of one head",
       attention<&AM::head_dim>},
      {"model.attention.partial_rotary_factor", real, "", {.least = 0, .most = 1, .least_excluded = true}, {},
       same, "share of each head that rotary positions turn", attention<&AM::partial_rotary_factor>},
      {"model.attention.rope_theta", real, "", at_least(1), {}, same, "base of the rotary frequencies",
       attention<&AM::rope_theta>},

      {"data.train", sources, "", {}, {}, same, "token files to learn from", data<&DataConfig::train>},
      {"data.valid", sources, "", {}, {}, free, "token files for evaluation", data<&DataConfig::valid>, {},
       Null::means_default},
      {"data.seq_len", tokens, "tokens", between(1, max_dimension), {}, same, "tokens of one sample",
       data<&DataConfig::seq_len>},
      {"data.shuffle", boolean, "", {}, {}, same, "visit the samples in a keyed random order",
       data<&DataConfig::shuffle>},

      {"train.steps", integer, "steps", between(1, max_count), {}, same, "optimizer steps of the whole run",
       train<&TrainConfig::steps>},
      {"train.precision", word, "", {}, names_of<Precision>(), same,
       "type of weights and activations; sums, gradients and master weights are float32 always",
       train<&TrainConfig::precision>},
      {"train.global_batch_tokens", tokens, "tokens", between(1, max_count), {}, same,
       "tokens of one optimizer step over all ranks", train<&TrainConfig::global_batch_tokens>},
      {"train.micro_batch", integer, "samples", between(1, max_dimension), {}, free,
       "samples of one forward and backward of one rank", train<&TrainConfig::micro_batch>},
      {"train.grad_clip", real, "", at_least(0), {}, same,
       "limit of the global gradient norm; 0 switches clipping off", train<&TrainConfig::grad_clip>},
      {"train.loss_chunk_tokens", tokens, "tokens", between(1, max_dimension), {}, free,
       "rows of logits that exist at one time", train<&TrainConfig::loss_chunk_tokens>},
      {"train.on_nonfinite", word, "", {}, names_of<OnNonFinite>(), free,
       "what to do when loss or gradient is NaN or infinite", train<&TrainConfig::on_nonfinite>},

      {"optimizer.lr", real, "", above(0), {}, same, "peak learning rate of AdamW",
       optimizer<&OptimizerConfig::lr>},
      {"optimizer.betas", real_pair, "", from_below(0, 1), {}, same, "decay of the first and second moment",
       betas},
      {"optimizer.eps", real, "", above(0), {}, same, "epsilon of AdamW", optimizer<&OptimizerConfig::eps>},
      {"optimizer.weight_decay", real, "", at_least(0), {}, same, "decoupled weight decay of matrices",
       optimizer<&OptimizerConfig::weight_decay>},

      {"schedule.name", word, "", {}, names_of<ScheduleName>(), same,
       "shape of the learning rate after warm-up", schedule<&ScheduleConfig::name>},
      {"schedule.warmup", integer, "steps", between(0, max_count), {}, same,
       "steps of linear warm-up; fewer than train.steps", schedule<&ScheduleConfig::warmup>},
      {"schedule.min_lr_ratio", real, "", between(0, 1), {}, same,
       "final learning rate over peak (cosine, wsd)", schedule<&ScheduleConfig::min_lr_ratio>},
      {"schedule.decay", integer, "steps", between(0, max_count), {}, same, "wsd only: steps of the final decay",
       schedule<&ScheduleConfig::decay>},

      {"recurrence.implementation", word, "", {}, names_of<RecurrenceName>(), free,
       "which kernels run GDN and GDN2", bind<&R::recurrence, &RecurrenceConfig::implementation>},

      {"attention.implementation", word, "", {}, names_of<AttentionName>(), free,
       "which kernels run the core of attention; cudnn needs a build with cuDNN and bfloat16",
       bind<&R::attention, &AttentionKernels::implementation>},

      {"graph.scope", word, "", {}, names_of<GraphScope>(), free,
       "what is captured once and replayed: token mixers, layers or whole passes", graph<&GraphConfig::scope>},
      {"graph.warmup_steps", integer, "steps", between(0, max_count), {}, free,
       "eager steps before the capture", graph<&GraphConfig::warmup_steps>},
      {"graph.on_failure", word, "", {}, names_of<OnCaptureFailure>(), free,
       "what to do when a capture fails", graph<&GraphConfig::on_failure>},
      {"graph.max_shapes", integer, "shapes", between(1, 4096), {}, free,
       "input shapes to capture; each holds the memory of one pass", graph<&GraphConfig::max_shapes>},

      {"recompute.gdn_norm_out", boolean, "", {}, {}, free,
       "backward computes the gated norm's output of GDN and GDN2 again, in a pass it makes anyway",
       bind<&R::recompute, &RecomputeConfig::gdn_norm_out>},
      {"recompute.gdn_core_inputs", word, "", {}, names_of<CoreInputsAgain>(), free,
       "what the recurrence reads that backward computes again: nothing, GDN2's gates, or q, k, v and gates",
       bind<&R::recompute, &RecomputeConfig::gdn_core_inputs>},
      {"recompute.gdn_preparation", boolean, "", {}, {}, free,
       "backward makes again what the cuda recurrences make of each chunk before the state comes in",
       bind<&R::recompute, &RecomputeConfig::gdn_preparation>},

      {"offload.enabled", boolean, "", {}, {}, free, "move saved tensors to pinned host memory until backward",
       offload<&OC::enabled>},
      {"offload.scopes", words, "", {}, names_of<OffloadScope>(), free, "groups of saved tensors that may move",
       offload<&OC::scopes>},
      {"offload.fraction", real, "", between(0, 1), {}, free,
       "share of the eligible groups that move; the latest stay", offload<&OC::fraction>},
      {"offload.min_tensor_elements", integer, "elements", at_least(0), {}, free,
       "smaller tensors stay on the device", offload<&OC::min_tensor_elements>},
      {"offload.keep_last", integer, "groups", between(0, 65536), {}, free,
       "last groups that stay on the device; 0: as many as offload.slots", offload<&OC::keep_last>},
      {"offload.slots", integer, "groups", between(1, 64), {}, free,
       "groups whose device memory waits for its copy to the host", offload<&OC::slots>},
      {"offload.max_inflight", integer, "groups", between(0, 64), {}, free,
       "copies to the host under way at one time, at most offload.slots; 0: as many",
       offload<&OC::max_inflight>},
      {"offload.delayed", boolean, "", {}, {}, free,
       "enqueue transfers between layers only, as always with graph.scope attention and layer", offload<&OC::delayed>},
      {"offload.pinned_limit", integer, "bytes", at_least(0), {}, free,
       "host memory of one rank for offload; 0: nine tenths of what control group and nodes leave",
       offload<&OC::pinned_limit>},
      {"offload.strict_numa", boolean, "", {}, {}, free,
       "host memory that is not on the device's NUMA node is an error", offload<&OC::strict_numa>},

      {"checkpoint.dir", text, "", {}, {}, free, "directory of the checkpoints",
       checkpoint<&CheckpointConfig::dir>, "${run.dir}/checkpoints", Null::means_default},
      {"checkpoint.every", integer, "steps", between(0, max_count), {}, free,
       "steps between checkpoints; 0: only at the end", checkpoint<&CheckpointConfig::every>},
      {"checkpoint.keep_last", integer, "checkpoints", at_least(2), {}, free,
       "checkpoints to keep; 2 or more, because the newest may be incomplete",
       checkpoint<&CheckpointConfig::keep_last>},
      {"checkpoint.resume", text, "", {}, {}, free,
       "none, auto (newest in checkpoint.dir) or a checkpoint's directory",
       checkpoint<&CheckpointConfig::resume>},
      {"checkpoint.verify_hashes", boolean, "", {}, {}, free, "check the content hashes when loading",
       checkpoint<&CheckpointConfig::verify_hashes>},

      {"eval.every", integer, "steps", between(0, max_count), {}, free,
       "steps between evaluations; 0: only start and end", eval<&EvalConfig::every>},
      {"eval.batches", integer, "samples", between(1, max_dimension), {}, free,
       "samples of data.valid per evaluation; all if it has fewer", eval<&EvalConfig::batches>},
      {"eval.at_start", boolean, "", {}, {}, free, "evaluate before the first step",
       eval<&EvalConfig::at_start>},
      {"eval.at_end", boolean, "", {}, {}, free, "evaluate after the last step", eval<&EvalConfig::at_end>},

      {"logging.every", integer, "steps", between(1, max_count), {}, free, "steps between console lines",
       logging<&LoggingConfig::every>},
      {"logging.jsonl", boolean, "", {}, {}, free, "write metrics.jsonl into run.dir",
       logging<&LoggingConfig::jsonl>},
      {"logging.progress", boolean, "", {}, {}, free, "show a progress bar when standard error is a terminal",
       logging<&LoggingConfig::progress>},
  };
}
// clang-format on

constexpr ItemField items[] = {
    {"data.train", "path", text, {}, "prefix of PATH.bin and PATH.idx"},
    {"data.train", "weight", real, above(0), "share of the samples, relative to the other entries"},
    {"data.valid", "path", text, {}, "prefix of PATH.bin and PATH.idx"},
};

}  // namespace

std::span<const Field> fields() {
  static const std::vector<Field> table = make_table();
  return table;
}

std::span<const ItemField> item_fields() {
  return items;
}

}  // namespace deltaport::config
