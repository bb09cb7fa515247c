// SPDX-License-Identifier: Apache-2.0
#include "config/presets.hpp"

namespace deltaport::config {
namespace {

constexpr std::string_view names[] = {"none",       "tiny",       "qwen3.5-0.8b",
                                      "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b"};

// For tests on a CPU: every kind of layer, grouped heads, all dimensions different.
constexpr std::string_view tiny = R"(
model:
  vocab_size: 257
  hidden_size: 64
  num_hidden_layers: 4
  intermediate_size: 160
  layer_pattern: [gdn, gdn2, gdn, attention]
  linear: {num_key_heads: 2, num_value_heads: 4, key_head_dim: 16, value_head_dim: 24, chunk_size: 16}
  attention: {num_heads: 4, num_kv_heads: 2, head_dim: 32}
)";

// What all Qwen3.5 text models share.
constexpr std::string_view qwen = R"(
  vocab_size: 248320
  layer_pattern: [gdn, gdn, gdn, attention]
  rms_norm_eps: 1.0e-6
  initializer_range: 0.02
)";

struct QwenDimensions {
  std::string_view name, hidden, layers, intermediate, heads, kv_heads, value_heads, tied;
};
// The 27B model's head is taken as untied, like that of the other large ones.
constexpr QwenDimensions family[] = {{"qwen3.5-0.8b", "1024", "24", "3584", "8", "2", "16", "true"},
                                     {"qwen3.5-4b", "2560", "32", "9216", "16", "4", "32", "true"},
                                     {"qwen3.5-9b", "4096", "32", "12288", "16", "4", "32", "false"},
                                     {"qwen3.5-27b", "5120", "64", "17408", "24", "4", "48", "false"}};

std::string qwen_yaml(const QwenDimensions& d) {
  const auto line = [](std::string_view key, std::string_view value) {
    return "  " + std::string(key) + ": " + std::string(value) + "\n";
  };
  return "model:" + std::string(qwen) + line("hidden_size", d.hidden) + line("num_hidden_layers", d.layers) +
         line("intermediate_size", d.intermediate) + line("tie_word_embeddings", d.tied) +
         line("linear", "{num_key_heads: 16, num_value_heads: " + std::string(d.value_heads) +
                            ", key_head_dim: 128, value_head_dim: 128, conv_kernel: 4, chunk_size: 64}") +
         line("attention", "{num_heads: " + std::string(d.heads) +
                               ", num_kv_heads: " + std::string(d.kv_heads) +
                               ", head_dim: 256, partial_rotary_factor: 0.25, rope_theta: 1.0e+7}");
}

}  // namespace

std::span<const std::string_view> preset_names() {
  return names;
}

std::string preset_yaml(std::string_view name) {
  if (name == "tiny") return std::string(tiny);
  for (const QwenDimensions& dimensions : family)
    if (dimensions.name == name) return qwen_yaml(dimensions);
  return "";
}

}  // namespace deltaport::config
