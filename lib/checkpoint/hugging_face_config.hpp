// SPDX-License-Identifier: Apache-2.0
// config.json and ModelConfig.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/file_system.hpp"
#include "deltaport/config/run_config.hpp"

namespace deltaport::checkpoint {

using files::Path;

enum class Architecture {
  conditional_generation,  ///< Qwen3_5ForConditionalGeneration: text and vision
  causal_lm                ///< Qwen3_5ForCausalLM
};

struct HuggingFaceConfig {
  ModelConfig model;
  Architecture architecture = Architecture::causal_lm;
  std::string text;  ///< the file as it is
};

/// Throws Error (exit code 2) with every key that does not fit; `file` is for messages.
HuggingFaceConfig parse_hugging_face_config(const std::string& text, const std::string& file);
HuggingFaceConfig read_hugging_face_config(const Path& folder);

/// The config.json of Qwen3_5ForCausalLM with weights of `dtype`. What the model does not say comes from
/// `base`, where there is one, and is otherwise what published models have. The text of `base` itself where
/// that says the same.
std::string causal_lm_config(const ModelConfig& model, FileDtype dtype, const HuggingFaceConfig* base);

/// "key: a, but b" for every key in which the two models compute differently.
std::vector<std::string> model_differences(const ModelConfig& a, const std::string& a_name,
                                           const ModelConfig& b, const std::string& b_name);

}  // namespace deltaport::checkpoint
