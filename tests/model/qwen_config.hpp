// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/config/run_config.hpp"

namespace deltaport::testing {

/// The text model of Qwen3.5-0.8B: 752,393,024 parameters.
inline ModelConfig qwen3_5_0_8b() {
  ModelConfig config;
  config.vocab_size = 248320;
  config.hidden_size = 1024;
  config.num_hidden_layers = 24;
  config.intermediate_size = 3584;
  config.linear = {16, 16, 128, 128, 4, 64};
  config.attention.num_heads = 8;
  config.attention.num_kv_heads = 2;
  config.attention.head_dim = 256;
  return config;
}

}  // namespace deltaport::testing
