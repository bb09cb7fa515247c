// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/model_size.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

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

std::int64_t total(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// Element counts per token of one layer. Gates, norms and lengths are kept in the accumulation type, which
// for float and double is as large as a value.
struct PerToken {
  std::int64_t hidden, inner;
  std::int64_t keys, values, key_heads, value_heads, chunk;
  bool chunked, saves_norm_output;

  PerToken(const ModelConfig& c, const LmOptions& options)
      : hidden(c.hidden_size),
        inner(c.intermediate_size),
        keys(c.linear.num_key_heads * c.linear.key_head_dim),
        values(c.linear.num_value_heads * c.linear.value_head_dim),
        key_heads(c.linear.num_key_heads),
        value_heads(c.linear.num_value_heads),
        chunk(c.linear.chunk_size),
        chunked(options.recurrence != recurrence::Implementation::reference),
        saves_norm_output(options.norm_output == NormOutput::save) {}

  std::int64_t projections(LayerType type) const {
    const std::int64_t qkvz = 2 * keys + 2 * values;
    return type == LayerType::gdn ? qkvz + 2 * value_heads : qkvz + 2 * keys + values;
  }
  // What the recurrence saves: its inputs, and of the chunked form the chunk matrices.
  std::vector<std::int64_t> core_tensors(LayerType type) const {
    std::vector<std::int64_t> sizes = {keys, keys, values};
    const std::int64_t matrix = value_heads * chunk;
    if (type == LayerType::gdn)
      sizes.insert(sizes.end(), {value_heads, value_heads});
    else
      sizes.insert(sizes.end(), {keys, keys, values});
    if (chunked) sizes.push_back(matrix);
    if (chunked && type == LayerType::gdn2) sizes.push_back(matrix);
    return sizes;
  }
  // The output norm's: projections, input, statistics, and its output unless backward computes it again.
  std::vector<std::int64_t> norm_tensors(LayerType type) const {
    std::vector<std::int64_t> sizes = {projections(type), values, value_heads};
    if (saves_norm_output) sizes.push_back(values);
    return sizes;
  }
  std::int64_t linear_saved(LayerType type) const {
    return hidden + 2 * key_heads + total(core_tensors(type)) + total(norm_tensors(type));
  }
  // Alive in backward besides: gradients of the residual, of the projections, of the recurrence's output and
  // inputs, and the chunk states with their gradients.
  std::int64_t linear_workspace(LayerType type, const LinearMixerConfig& c) const {
    const std::int64_t gates = type == LayerType::gdn ? 2 * value_heads : 2 * keys + values;
    const std::int64_t states = chunked ? 2 * value_heads * c.key_head_dim * c.value_head_dim / chunk : 0;
    return 2 * hidden + projections(type) + values + 2 * keys + values + gates + states;
  }
};

struct AttentionPerToken {
  std::int64_t saved, workspace;
  std::vector<std::int64_t> core_tensors;  // q, k, output, logarithms
  explicit AttentionPerToken(const ModelConfig& c) {
    const AttentionConfig& a = c.attention;
    const std::int64_t heads = a.num_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
    const std::int64_t rotary = std::llround(static_cast<double>(a.head_dim) * a.partial_rotary_factor);
    saved = c.hidden_size + 2 * (heads + kv) + rotary + heads + kv + heads + a.num_heads;
    workspace = 2 * c.hidden_size + 2 * (heads + kv) + 2 * heads + kv + a.num_heads;
    core_tensors = {heads, kv, heads, a.num_heads};
  }
};

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
                               const LmOptions& options) {
  DELTAPORT_VALIDATE(dtype == Dtype::f32 || dtype == Dtype::f64, ConfigError,
                     "activation_size: activations are float32 or float64, not ", name_of(dtype));
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const PerToken per_token(config, options);
  const AttentionPerToken attention(config);
  SizeTable table;
  std::int64_t workspace = 0;
  const auto elements = [&](std::int64_t count) {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(tokens * element, count, &bytes)) bytes = most_bytes + 1;
    check_countable(bytes);
    return bytes;
  };
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerType type = config.layer_type(i);
    const bool linear = type != LayerType::attention;
    table.add_bytes(mixer_names[static_cast<int>(type)],
                    elements(linear ? per_token.linear_saved(type) : attention.saved));
    table.add_bytes("mlps", elements(per_token.hidden + 2 * per_token.inner));
    workspace = std::max(
        workspace, elements(linear ? per_token.linear_workspace(type, config.linear) : attention.workspace));
  }
  // Every norm keeps its input, the residual stream, and one statistic per token.
  table.add_bytes("norms", elements((2 * config.num_hidden_layers + 1) * (per_token.hidden + 1)));
  table.add_bytes("embedding", tokens * static_cast<std::int64_t>(sizeof(std::int32_t)));
  const std::int64_t mlp = elements(3 * per_token.hidden + per_token.inner);
  const std::int64_t loss = elements(2 * per_token.hidden) +
                            tokens * static_cast<std::int64_t>(sizeof(double)) +
                            std::min(tokens, options.loss_chunk_tokens) * config.vocab_size * element;
  ActivationSize size;
  size.saved = table.entries();
  size.workspace_bytes = std::max({workspace, mlp, loss});
  return size;
}

std::vector<SavedGroupSize> saved_groups(const ModelConfig& config, std::int64_t tokens,
                                         const LmOptions& options) {
  const PerToken per_token(config, options);
  const AttentionPerToken attention(config);
  std::vector<SavedGroupSize> groups;
  const auto add = [&](const char* scope, std::vector<std::int64_t> sizes) {
    for (std::int64_t& elements : sizes) elements *= tokens;
    groups.push_back({scope, std::move(sizes)});
  };
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerType type = config.layer_type(i);
    if (type == LayerType::attention) {
      add("attn_core", attention.core_tensors);
    } else {
      add("gdn_core_attn", per_token.core_tensors(type));
      add("norm_out", per_token.norm_tensors(type));
    }
    add("mlp", {per_token.hidden, 2 * per_token.inner});
  }
  return groups;
}

}  // namespace deltaport
