// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/model_size.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "deltaport/core/gemm.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/model/linear_cross_entropy.hpp"
#include "model/cudnn/attention.hpp"

namespace deltaport {
namespace {

constexpr const char* mixer_names[] = {"gdn mixers", "gdn2 mixers", "attention mixers"};

// Index of the layer in "model.layers.N.rest".
std::int64_t layer_of(const std::string& name) {
  return std::stoll(name.substr(std::string("model.layers.").size()));
}

std::string component_of(const ModelConfig& config, const std::string& name) {
  if (name == "model.embed_tokens.weight") return "embedding";
  if (name == "lm_head.weight") return "lm_head";
  if (name.find(".linear_attn.") != std::string::npos || name.find(".self_attn.") != std::string::npos)
    return mixer_names[static_cast<int>(config.layer_type(layer_of(name)))];
  return name.find(".mlp.") != std::string::npos ? "mlps" : "norms";
}

// Far above any machine, and far enough below 2^63 that sums of such amounts are numbers still.
constexpr std::int64_t most_bytes = std::int64_t{1} << 55;

void check_countable(std::int64_t bytes) {
  DELTAPORT_VALIDATE(bytes <= most_bytes, ConfigError,
                     "the activations of one micro-batch would take more than 2^55 bytes; check "
                     "train.micro_batch, data.seq_len and the sizes under model");
}

// A table whose lines appear in a fixed order and only when they hold something.
class SizeTable {
 public:
  void add(const std::string& component, std::int64_t amount) {
    for (SizeEntry& entry : entries_)
      if (entry.component == component) entry.amount += amount;
  }
  void add_bytes(const std::string& component, std::int64_t amount) {
    add(component, amount);
    for (const SizeEntry& entry : entries_) check_countable(entry.amount);
  }
  std::vector<SizeEntry> entries() const {
    std::vector<SizeEntry> result;
    for (const SizeEntry& entry : entries_)
      if (entry.amount > 0) result.push_back(entry);
    return result;
  }

 private:
  std::vector<SizeEntry> entries_{{"embedding", 0},    {mixer_names[0], 0}, {mixer_names[1], 0},
                                  {mixer_names[2], 0}, {"mlps", 0},         {"norms", 0},
                                  {"lm_head", 0}};
};

// Element counts: of values, in the type of weights and activations, and of what is kept in its accumulation
// type.
struct Elements {
  std::int64_t values = 0, wide = 0;
};
Elements total(const std::vector<Elements>& tensors) {
  Elements sum;
  for (const Elements& tensor : tensors) sum.values += tensor.values, sum.wide += tensor.wide;
  return sum;
}

// Per token of one GDN or GDN2 layer.
struct LinearElements {
  std::int64_t key_dim, value_dim, hidden, keys, values, key_heads, value_heads, state, chunk;
  bool portable, chunked, half, saves_norm_output;
  CoreInputs core_inputs;
  recurrence::Options call;
  Dtype dtype;

  LinearElements(const ModelConfig& c, Dtype type_of_values, const LmOptions& options)
      : key_dim(c.linear.key_head_dim),
        value_dim(c.linear.value_head_dim),
        hidden(c.hidden_size),
        keys(c.linear.num_key_heads * c.linear.key_head_dim),
        values(c.linear.num_value_heads * c.linear.value_head_dim),
        key_heads(c.linear.num_key_heads),
        value_heads(c.linear.num_value_heads),
        state(c.linear.key_head_dim * c.linear.value_head_dim),
        chunk(c.linear.chunk_size),
        half(type_of_values == Dtype::bf16),
        saves_norm_output(options.norm_output == NormOutput::save),
        core_inputs(options.core_inputs),
        dtype(type_of_values) {
    if (options.preparation == Preparation::save) call.keep = recurrence::Keep::preparation;
    call.chunk_size = static_cast<int>(chunk);
    call.implementation = options.recurrence;
    const auto implementation =
        recurrence::implementation_of(dtype, c.linear.key_head_dim, c.linear.value_head_dim, call);
    portable = implementation == recurrence::Implementation::portable;
    chunked = implementation != recurrence::Implementation::reference;
  }

  std::int64_t qkv() const { return 2 * keys + values; }
  std::int64_t projections(LayerType type) const {
    const std::int64_t qkvz = 2 * keys + 2 * values;
    return type == LayerType::gdn ? qkvz + 2 * value_heads : qkvz + 2 * keys + values;
  }
  // The recurrence's gates: GDN's are all wide, of GDN2's only the decay.
  Elements gates(LayerType type) const {
    if (type == LayerType::gdn) return {0, 2 * value_heads};
    return {keys + values, keys};
  }
  // The recurrence saves those of its inputs that backward does not compute again; of the chunk matrices only `portable` keeps
  // any, and never in halves.
  std::vector<Elements> core_tensors(LayerType type) const {
    std::vector<Elements> tensors;
    if (core_inputs != CoreInputs::recompute) tensors = {{keys, 0}, {keys, 0}, {values, 0}};
    if (saves_gates(type)) {
      if (type == LayerType::gdn)
        tensors.insert(tensors.end(), {{0, value_heads}, {0, value_heads}});
      else
        tensors.insert(tensors.end(), {{0, keys}, {keys, 0}, {values, 0}});
    }
    if (portable) tensors.insert(tensors.end(), type == LayerType::gdn ? 1 : 2, {0, value_heads * chunk});
    return tensors;
  }
  bool saves_gates(LayerType type) const {
    return core_inputs == CoreInputs::save ||
           (core_inputs == CoreInputs::recompute_gates && type == LayerType::gdn);
  }
  // What the recurrence keeps of its preparation, for `sequences` in all.
  std::int64_t prepared_bytes(LayerType type, std::int64_t tokens, std::int64_t sequences) const {
    return type == LayerType::gdn ? recurrence::gdn_prepared_bytes(dtype, tokens, sequences, value_heads,
                                                                   key_dim, value_dim, call)
                                  : recurrence::gdn2_prepared_bytes(dtype, tokens, sequences, key_heads,
                                                                    key_dim, value_dim, call);
  }
  // The output norm's: projections, input, statistics, and its output unless backward computes it again.
  std::vector<Elements> norm_tensors(LayerType type) const {
    std::vector<Elements> tensors = {{projections(type), 0}, {values, 0}, {0, value_heads}};
    if (saves_norm_output) tensors.push_back({values, 0});
    return tensors;
  }
  Elements saved(LayerType type) const {
    const Elements core = total(core_tensors(type)), norm = total(norm_tensors(type));
    return {hidden + core.values + norm.values, 2 * key_heads + core.wide + norm.wide};
  }
  // Alive in backward besides: gradients of the residual, of the projections, of the recurrence's output and
  // inputs, and the chunk states with their gradients. What does not take halves works on wide copies.
  Elements workspace(LayerType type) const {
    const Elements gate = gates(type);
    const std::int64_t states = chunked ? 2 * value_heads * state / chunk : 0;
    const std::int64_t copies = half && (portable || !chunked) ? 2 * (qkv() + gate.values) + values : 0;
    Elements again;
    if (core_inputs == CoreInputs::recompute) again.values += qkv();
    if (!saves_gates(type)) again.values += gate.values, again.wide += gate.wide;
    return {hidden + projections(type) + values + qkv() + gate.values + again.values,
            gate.wide + states + copies + again.wide};
  }
};

struct AttentionElements {
  Elements saved, workspace;
  std::int64_t projections;
  std::vector<Elements> core_tensors;  // q, k, output, logarithms
  AttentionElements(const ModelConfig& c, Dtype dtype) {
    const AttentionConfig& a = c.attention;
    const std::int64_t heads = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
    const std::int64_t rotary = std::llround(static_cast<double>(a.head_dim) * a.partial_rotary_factor);
    projections = 2 * (heads + kv);
    saved = {c.hidden_size + projections + heads + kv + heads, rotary + a.num_heads};
    const std::int64_t dv_sums = dtype == Dtype::bf16 ? kv : 0;
    workspace = {2 * c.hidden_size + projections + heads, heads + kv + dv_sums + a.num_heads};
    core_tensors = {{heads, 0}, {kv, 0}, {heads, 0}, {0, a.num_heads}};
  }
};

// What cuDNN's backward takes: the gradients of the scores, and those of keys and values by query heads.
std::int64_t fused_attention_bytes(const AttentionConfig& a, std::int64_t tokens, std::int64_t row_tokens,
                                   Dtype dtype, AttentionImplementation implementation) {
  const std::int64_t row = row_tokens > 0 && tokens % row_tokens == 0 ? row_tokens : tokens;
  const bool taken = cudnn::available() && dtype == Dtype::bf16 && a.head_dim <= 256 && a.head_dim % 8 == 0 &&
                     (implementation == AttentionImplementation::cudnn ||
                      (implementation == AttentionImplementation::automatic && row % 128 == 0));
  if (!taken) return 0;
  const double bytes = static_cast<double>(a.num_heads) * static_cast<double>(tokens) *
                       static_cast<double>(2 * row + 4 * a.head_dim);
  return bytes <= static_cast<double>(cudnn::workspace_limit) ? static_cast<std::int64_t>(bytes) : 0;
}

std::int64_t rows_of(std::int64_t tokens, std::int64_t row_tokens) {
  return row_tokens > 0 ? (tokens + row_tokens - 1) / row_tokens : 1;
}

// Bytes of counts per token, refused when they are beyond counting.
class Bytes {
 public:
  Bytes(std::int64_t tokens, Dtype dtype)
      : tokens_(tokens),
        value_(static_cast<std::int64_t>(size_of(dtype))),
        wide_(dtype == Dtype::bf16 ? static_cast<std::int64_t>(sizeof(float)) : value_) {}
  std::int64_t operator()(const Elements& per_token) const {
    std::int64_t values = 0, wide = 0, bytes = 0;
    if (__builtin_mul_overflow(tokens_ * value_, per_token.values, &values) ||
        __builtin_mul_overflow(tokens_ * wide_, per_token.wide, &wide) ||
        __builtin_add_overflow(values, wide, &bytes))
      bytes = most_bytes + 1;
    check_countable(bytes);
    return bytes;
  }

 private:
  std::int64_t tokens_, value_, wide_;
};

// What gemm() takes to widen tiles of its operands and of a bfloat16 result, m x n from k steps, on hosts.
std::int64_t gemm_tile_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Dtype operands, Dtype result) {
  if (!runs_on_host || operands != Dtype::bf16) return 0;
  const auto tile = [](std::int64_t a, std::int64_t b) {
    return std::min<std::int64_t>(a, gemm_tile) * std::min<std::int64_t>(b, gemm_tile);
  };
  const std::int64_t elements = tile(m, k) + tile(k, n) + (result == Dtype::bf16 ? tile(m, n) : 0);
  return elements * static_cast<std::int64_t>(sizeof(float));
}

// Forward, input gradient and weight gradient of a linear layer of `rows` tokens.
std::int64_t linear_tile_bytes(std::int64_t rows, std::int64_t in, std::int64_t out, Dtype dtype) {
  return std::max({gemm_tile_bytes(rows, out, in, dtype, dtype), gemm_tile_bytes(rows, in, out, dtype, dtype),
                   gemm_tile_bytes(out, in, rows, dtype, Dtype::f32)});
}

}  // namespace

std::int64_t parameter_count(const ModelConfig& config) {
  return HybridLm<float>(config).parameters().count();
}

std::vector<SizeEntry> parameter_breakdown(const ModelConfig& config) {
  const HybridLm<float> model(config);
  SizeTable table;
  for (const ParameterInfo& info : model.parameters().infos())
    table.add(component_of(config, info.name), info.shape.size());
  return table.entries();
}

std::int64_t ActivationSize::saved_bytes() const {
  std::int64_t total = 0;
  for (const SizeEntry& entry : saved) total += entry.amount;
  return total;
}

ActivationSize activation_size(const ModelConfig& config, std::int64_t tokens, Dtype dtype,
                               const LmOptions& options, std::int64_t row_tokens) {
  DELTAPORT_VALIDATE(dtype == Dtype::bf16 || dtype == Dtype::f32 || dtype == Dtype::f64, ConfigError,
                     "activation_size: activations are bfloat16, float32 or float64, not ", name_of(dtype));
  const Bytes bytes(tokens, dtype);
  const LinearElements linear(config, dtype, options);
  const AttentionElements attention(config, dtype);
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const std::int64_t sequences = rows_of(tokens, row_tokens);
  SizeTable table;
  std::int64_t workspace = 0;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerType type = config.layer_type(i);
    const bool is_linear = type != LayerType::attention;
    table.add_bytes(mixer_names[static_cast<int>(type)],
                    bytes(is_linear ? linear.saved(type) : attention.saved));
    if (is_linear)
      table.add_bytes(mixer_names[static_cast<int>(type)], linear.prepared_bytes(type, tokens, sequences));
    table.add_bytes("mlps", bytes({hidden + 2 * inner, 0}));
    // The products of a mixer run before and after its core, beside the gradient of its projections.
    const std::int64_t width = is_linear ? linear.projections(type) : attention.projections;
    const std::int64_t fused =
        is_linear ? 0 : fused_attention_bytes(config.attention, tokens, row_tokens, dtype, options.attention);
    workspace = std::max({workspace, bytes(is_linear ? linear.workspace(type) : attention.workspace) + fused,
                          bytes({2 * hidden + width, 0}) + linear_tile_bytes(tokens, hidden, width, dtype)});
  }
  // Every norm keeps its input, the residual stream, and one statistic per token.
  const std::int64_t norms = 2 * config.num_hidden_layers + 1;
  table.add_bytes("norms", bytes({norms * hidden, norms}));
  table.add_bytes("embedding", tokens * static_cast<std::int64_t>(sizeof(std::int32_t)));
  // The gradients of output and input and the activation's; then, in the norm before it, that of the residual.
  const std::int64_t mlp =
      bytes({2 * hidden + std::max(inner, hidden), 0}) + linear_tile_bytes(tokens, hidden, 2 * inner, dtype);
  const std::int64_t rows = loss_rows(tokens, options.loss_chunk_tokens);
  const std::int64_t loss = bytes({2 * hidden, 0}) + tokens * static_cast<std::int64_t>(sizeof(double)) +
                            rows * config.vocab_size * static_cast<std::int64_t>(size_of(dtype)) +
                            linear_tile_bytes(rows, hidden, config.vocab_size, dtype);
  ActivationSize size;
  size.saved = table.entries();
  size.workspace_bytes = std::max({workspace, mlp, loss});
  return size;
}

std::vector<SavedGroupSize> saved_groups(const ModelConfig& config, std::int64_t tokens, Dtype dtype,
                                         const LmOptions& options, std::int64_t row_tokens) {
  const Bytes bytes(tokens, dtype);
  const LinearElements linear(config, dtype, options);
  const AttentionElements attention(config, dtype);
  std::vector<SavedGroupSize> groups;
  const auto add = [&](const char* scope, const std::vector<Elements>& tensors) {
    SavedGroupSize group{scope, {}};
    for (const Elements& tensor : tensors)
      group.tensors.push_back({tokens * (tensor.values + tensor.wide), bytes(tensor)});
    groups.push_back(std::move(group));
  };
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerType type = config.layer_type(i);
    if (type == LayerType::attention) {
      add("attn_core", attention.core_tensors);
    } else {
      add("gdn_core_attn", linear.core_tensors(type));
      if (const std::int64_t prepared = linear.prepared_bytes(type, tokens, rows_of(tokens, row_tokens));
          prepared > 0)
        groups.back().tensors.push_back({prepared / static_cast<std::int64_t>(size_of(dtype)), prepared});
      add("norm_out", linear.norm_tensors(type));
    }
    add("mlp", {{config.hidden_size, 0}, {2 * config.intermediate_size, 0}});
  }
  return groups;
}

}  // namespace deltaport
