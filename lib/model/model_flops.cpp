// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/model_flops.hpp"

#include "deltaport/model/hybrid_lm.hpp"

namespace deltaport {

ModelFlops training_flops_per_token(const ModelConfig& config, std::int64_t seq_len) {
  const HybridLm<float> model(config);
  ModelFlops flops;
  for (const ParameterInfo& info : model.parameters().infos()) {
    const bool looked_up = info.name == "model.embed_tokens.weight" && !config.tie_word_embeddings;
    if (info.shape.rank() == 2 && !looked_up) flops.products += 6.0 * static_cast<double>(info.shape.size());
  }
  const AttentionConfig& a = config.attention;
  // Token t of a row sees t + 1 keys, so (seq_len + 1) / 2 in the middle; 4 operations for each in forward.
  const double attention =
      3.0 * 4.0 * static_cast<double>(a.num_heads * a.head_dim) * 0.5 * static_cast<double>(seq_len + 1);
  const LinearMixerConfig& l = config.linear;
  const double k = static_cast<double>(l.key_head_dim), v = static_cast<double>(l.value_head_dim), c = 64.0;
  const double recurrence =
      3.0 * static_cast<double>(l.num_value_heads) * (6 * k * v + 4 * c * (k + v) + 2 * c * c / 3);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    if (config.layer_type(i) == LayerType::attention)
      flops.attention += attention;
    else
      flops.recurrence += recurrence;
  return flops;
}

}  // namespace deltaport
