// SPDX-License-Identifier: Apache-2.0
#include "config/presets.hpp"

#include "support.hpp"

namespace deltaport::test {
namespace {

ModelConfig preset(const std::string& name) {
  return load_arguments({"--model.preset=" + name}).config.model;
}

// Parameters by the sizes alone, counted here apart from the model's code.
std::int64_t parameters(const ModelConfig& m) {
  const std::int64_t d = m.hidden_size;
  const std::int64_t k = m.linear.num_key_heads * m.linear.key_head_dim;
  const std::int64_t v = m.linear.num_value_heads * m.linear.value_head_dim;
  const std::int64_t heads = m.linear.num_value_heads;
  const std::int64_t gdn = d * (2 * k + v) + d * v + 2 * d * heads + (2 * k + v) * m.linear.conv_kernel +
                           2 * heads + m.linear.value_head_dim + v * d;
  const std::int64_t q = m.attention.num_heads * m.attention.head_dim;
  const std::int64_t kv = m.attention.num_kv_heads * m.attention.head_dim;
  const std::int64_t attention = d * 2 * q + 2 * d * kv + q * d + 2 * m.attention.head_dim;
  std::int64_t total = m.vocab_size * d * (m.tie_word_embeddings ? 1 : 2) + d;
  for (std::int64_t i = 0; i < m.num_hidden_layers; ++i)
    total +=
        3 * d * m.intermediate_size + 2 * d + (m.layer_type(i) == LayerType::attention ? attention : gdn);
  return total;
}

TEST(Presets, SmallestQwenHasItsPublishedSize) {
  const ModelConfig m = preset("qwen3.5-0.8b");
  EXPECT_EQ(parameters(m), 752393024);
  EXPECT_EQ(m.layer_type(2), LayerType::gdn);
  EXPECT_EQ(m.layer_type(3), LayerType::attention);
  EXPECT_EQ(m.layer_type(23), LayerType::attention);
  EXPECT_EQ(m.attention.rope_theta, 1e7);
}

TEST(Presets, FamilyDimensions) {
  const ModelConfig four = preset("qwen3.5-4b"), nine = preset("qwen3.5-9b"), large = preset("qwen3.5-27b");
  EXPECT_EQ(four.hidden_size, 2560);
  EXPECT_EQ(four.linear.num_value_heads, 32);
  EXPECT_TRUE(four.tie_word_embeddings);
  EXPECT_EQ(nine.intermediate_size, 12288);
  EXPECT_FALSE(nine.tie_word_embeddings);
  EXPECT_EQ(large.num_hidden_layers, 64);
  EXPECT_EQ(large.attention.num_heads, 24);
  EXPECT_FALSE(large.tie_word_embeddings);
}

TEST(Presets, EveryNameLoads) {
  for (const std::string_view name : config::preset_names())
    EXPECT_NO_THROW(preset(std::string(name))) << name;
  EXPECT_EQ(preset("none").hidden_size, ModelConfig{}.hidden_size);
  EXPECT_TRUE(has(argument_report({"--model.preset=qwen3.5-0.8B"}), "did you mean 'qwen3.5-0.8b'?"));
}

}  // namespace
}  // namespace deltaport::test
