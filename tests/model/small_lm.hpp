// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/model/hybrid_lm.hpp"
#include "model/gradient_check.hpp"

namespace deltaport::testing {

enum class Head { tied, untied };

/// One layer of each kind; small, but with every dimension different.
inline ModelConfig small_lm_config(Head head, std::int64_t value_heads = 4) {
  ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 10;
  config.num_hidden_layers = 3;
  config.intermediate_size = 14;
  config.layer_pattern = {LayerType::gdn, LayerType::gdn2, LayerType::attention};
  config.linear = {2, value_heads, 4, 6, 4, 16};
  config.attention.num_heads = 4;
  config.attention.num_kv_heads = 2;
  config.attention.head_dim = 8;
  config.attention.partial_rotary_factor = 0.5;
  config.tie_word_embeddings = head == Head::tied;
  return config;
}

/// A model with random parameters, and what a step needs.
template <class T>
struct SmallLm {
  HybridLm<T> model;
  explicit SmallLm(Runtime& runtime, const ModelConfig& config,
                   const LmOptions& options = {.loss_chunk_tokens = 7})
      : model(config, options) {
    model.parameters().allocate(runtime);
    randomise(runtime, model.parameters(), 1, 0.4);
  }
};

/// Packed documents: tokens, the next tokens as labels, and none at each document's end.
struct Documents {
  std::vector<std::int32_t> cu_seqlens, tokens, labels;
  Documents(std::vector<std::int32_t> boundaries, std::int64_t vocab, std::uint64_t seed)
      : cu_seqlens(std::move(boundaries)) {
    for (std::int32_t t = 0; t < cu_seqlens.back(); ++t)
      tokens.push_back(static_cast<std::int32_t>(uniform(seed, 5, static_cast<std::uint64_t>(t)) *
                                                 static_cast<double>(vocab)));
    labels.assign(tokens.begin() + 1, tokens.end());
    labels.push_back(-100);
    for (std::size_t n = 1; n < cu_seqlens.size(); ++n)
      labels[static_cast<std::size_t>(cu_seqlens[n]) - 1] = -100;
    // A document of one token still has a target.
    if (tokens.size() == 1) labels[0] = tokens[0];
  }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
};

struct DeviceDocuments {
  Tensor<std::int32_t> tokens, labels;
  Sequences sequences;
  DeviceDocuments(Runtime& runtime, const Documents& d)
      : tokens(from_vector(runtime.compute(), runtime.arena(), "tokens", Shape{d.size()}, d.tokens)),
        labels(from_vector(runtime.compute(), runtime.arena(), "labels", Shape{d.size()}, d.labels)),
        sequences(make_sequences(runtime, d.cu_seqlens, d.size())) {}
};

template <class T>
double loss_of(Runtime& runtime, HybridLm<T>& model, const DeviceDocuments& d) {
  SavedTensors saved;
  Context context{runtime, saved, Mode::evaluate};
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  model.evaluate(context, d.tokens, d.labels, d.sequences, loss);
  EXPECT_TRUE(saved.empty());
  return host(runtime, loss)[0];
}

/// Loss; the gradients are added to the model's.
template <class T>
double loss_and_gradients(Runtime& runtime, HybridLm<T>& model, const DeviceDocuments& d,
                          double scale = 1.0) {
  SavedTensors saved;
  Context context{runtime, saved};
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  model.forward_backward(context, d.tokens, d.labels, d.sequences, scale, loss);
  EXPECT_TRUE(saved.empty());
  return host(runtime, loss)[0];
}

}  // namespace deltaport::testing
