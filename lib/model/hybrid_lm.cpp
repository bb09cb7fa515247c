// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/hybrid_lm.hpp"

namespace deltaport {

template <class T>
HybridLm<T>::HybridLm(const ModelConfig& config, const LmOptions& options) : config_(config) {
  DELTAPORT_VALIDATE(config.num_hidden_layers >= 1 && !config.layer_pattern.empty(), ConfigError,
                     "model: at least one layer and a layer pattern are needed");
  DELTAPORT_VALIDATE(config.vocab_size >= 2 && config.hidden_size >= 1 && config.intermediate_size >= 1,
                     ConfigError, "model: vocab_size ", config.vocab_size, ", hidden_size ",
                     config.hidden_size, " and intermediate_size ", config.intermediate_size,
                     " must be positive");
  embedding_ = std::make_unique<Embedding<T>>(parameters_, "model.embed_tokens", config);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers_.push_back(make_layer(i, options));
  final_norm_ =
      std::make_unique<RmsNorm<T>>(parameters_, "model.norm", config.hidden_size, config.rms_norm_eps);
  Parameter<T> output = embedding_->weight();
  if (!config.tie_word_embeddings)
    output = {&parameters_,
              parameters_.declare("lm_head.weight", Shape{config.vocab_size, config.hidden_size}, true,
                                  {Initializer::Kind::normal, config.initializer_range})};
  head_ = std::make_unique<LinearCrossEntropy<T>>(output, options.loss_chunk_tokens);
}

template <class T>
typename HybridLm<T>::Layer HybridLm<T>::make_layer(std::int64_t index, const LmOptions& options) {
  const std::string prefix = "model.layers." + std::to_string(index);
  const auto norm = [&](const char* name) {
    return std::make_unique<RmsNorm<T>>(parameters_, prefix + name, config_.hidden_size,
                                        config_.rms_norm_eps);
  };
  Layer layer;
  layer.input_norm = norm(".input_layernorm");
  switch (config_.layer_type(index)) {
    case LayerType::gdn:
      layer.linear = std::make_unique<GdnMixer<T>>(parameters_, prefix + ".linear_attn", config_,
                                                   options.recurrence, options.norm_output);
      break;
    case LayerType::gdn2:
      layer.linear = std::make_unique<Gdn2Mixer<T>>(parameters_, prefix + ".linear_attn", config_,
                                                    options.recurrence, options.norm_output);
      break;
    case LayerType::attention:
      layer.attention = std::make_unique<AttentionMixer<T>>(parameters_, prefix + ".self_attn", config_);
      break;
  }
  layer.mlp_norm = norm(".post_attention_layernorm");
  layer.mlp = std::make_unique<Mlp<T>>(parameters_, prefix + ".mlp", config_);
  return layer;
}

template <class T>
void HybridLm<T>::validate(const char* what, const Tensor<std::int32_t>& tokens,
                           const Sequences& sequences) const {
  DELTAPORT_VALIDATE(parameters_.flat_values().defined(), Error, what,
                     ": the parameters have no memory yet; call parameters().allocate() first");
  DELTAPORT_VALIDATE(tokens.rank() == 1 && tokens.size() >= 1, ShapeError, what,
                     ": tokens must be int32 [T] with T >= 1, got ", tokens.shape().str());
  DELTAPORT_VALIDATE(sequences.positions.size() == tokens.size(), ShapeError, what, ": sequences describe ",
                     sequences.positions.size(), " tokens, but there are ", tokens.size());
}

// `residual` is the running sum; every norm adds the output of the layer before it in the same pass.
template <class T>
template <class Mix>
Tensor<T> HybridLm<T>::run(Context& context, const Tensor<std::int32_t>& tokens, const Mix& mix) {
  Tensor<T> residual = embedding_->forward(context, tokens);
  Tensor<T> x = layers_.front().input_norm->forward(context, residual);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    x = mix(i, x);
    auto added = layers_[i].mlp_norm->forward_residual(context, residual, x);
    residual = std::move(added.sum);
    x = layers_[i].mlp->forward(context, added.normalised);
    const RmsNorm<T>& next = i + 1 < layers_.size() ? *layers_[i + 1].input_norm : *final_norm_;
    added = next.forward_residual(context, residual, x);
    residual = std::move(added.sum);
    x = std::move(added.normalised);
    if (context.training()) context.saved.flush();
  }
  return x;
}

template <class T>
Tensor<T> HybridLm<T>::mix_backward(Context& context, const Layer& layer, const Tensor<T>& dy,
                                    const Sequences& sequences) {
  return layer.linear ? layer.linear->backward(context, dy, sequences)
                      : layer.attention->backward(context, dy, sequences);
}

template <class T>
Tensor<T> HybridLm<T>::hidden(Context& context, const Tensor<std::int32_t>& tokens,
                              const Sequences& sequences) {
  validate("hidden", tokens, sequences);
  return run(context, tokens, [&](std::size_t i, const Tensor<T>& x) {
    const Layer& layer = layers_[i];
    return layer.linear ? layer.linear->forward(context, x, sequences)
                        : layer.attention->forward(context, x, sequences);
  });
}

template <class T>
void HybridLm<T>::hidden_backward(Context& context, const Tensor<T>& d_hidden, const Sequences& sequences) {
  Tensor<T> d_residual = final_norm_->backward(context, d_hidden);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    Layer& layer = layers_[i];
    context.saved.prepare();
    Tensor<T> d = layer.mlp->backward(context, d_residual);
    d_residual = layer.mlp_norm->backward(context, d, d_residual);
    d = mix_backward(context, layer, d_residual, sequences);
    d_residual = layer.input_norm->backward(context, d, d_residual);
  }
  embedding_->backward(context, d_residual);
}

template <class T>
void HybridLm<T>::forward_backward(Context& context, const Tensor<std::int32_t>& tokens,
                                   const Tensor<std::int32_t>& labels, const Sequences& sequences,
                                   double gradient_scale, const Tensor<double>& loss_sum) {
  DELTAPORT_VALIDATE(context.training(), Error, "forward_backward needs Mode::train");
  DELTAPORT_VALIDATE(context.saved.empty(), Error, "forward_backward found ", context.saved.size(),
                     " saved tensors of an earlier forward without backward; call SavedTensors::clear()");
  Tensor<T> d_hidden;
  {
    const Tensor<T> last = hidden(context, tokens, sequences);
    head_->forward_backward(context, last, labels, gradient_scale, loss_sum, d_hidden);
  }
  hidden_backward(context, d_hidden, sequences);
}

template <class T>
void HybridLm<T>::evaluate(Context& context, const Tensor<std::int32_t>& tokens,
                           const Tensor<std::int32_t>& labels, const Sequences& sequences,
                           const Tensor<double>& loss_sum) {
  DELTAPORT_VALIDATE(!context.training(), Error, "evaluate needs Mode::evaluate");
  head_->evaluate(context, hidden(context, tokens, sequences), labels, loss_sum);
}

template <class T>
Tensor<T> HybridLm<T>::logits(Context& context, const Tensor<std::int32_t>& tokens,
                              const Sequences& sequences) {
  return head_->logits(context.runtime, hidden(context, tokens, sequences));
}

template <class T>
DecodeState<T> HybridLm<T>::make_decode_state(Runtime& runtime, std::int64_t sequences,
                                              std::int64_t capacity) const {
  DELTAPORT_VALIDATE(sequences >= 1 && capacity >= 1, ShapeError, "make_decode_state: sequences ", sequences,
                     " and capacity ", capacity, " must be positive");
  DecodeState<T> state;
  state.sequences = sequences;
  for (const Layer& layer : layers_) {
    if (layer.linear)
      state.layers.push_back(layer.linear->make_state(runtime, sequences));
    else
      state.layers.push_back(layer.attention->make_state(runtime, sequences, capacity));
  }
  return state;
}

template <class T>
Tensor<T> HybridLm<T>::step(Runtime& runtime, const Tensor<std::int32_t>& tokens, DecodeState<T>& state) {
  DELTAPORT_VALIDATE(state.layers.size() == layers_.size(), ShapeError, "step: the state has ",
                     state.layers.size(), " layers, the model ", layers_.size(), "; use make_decode_state()");
  DELTAPORT_VALIDATE(tokens.rank() == 1 && tokens.size() == state.sequences, ShapeError,
                     "step: one token for each of ", state.sequences, " sequences needed, got ",
                     tokens.shape().str());
  SavedTensors nothing;
  Context context{runtime, nothing, Mode::evaluate};
  const Tensor<T> last = run(context, tokens, [&](std::size_t i, const Tensor<T>& x) {
    const Layer& layer = layers_[i];
    return layer.linear ? layer.linear->step(runtime, x, std::get<LinearDecodeState<T>>(state.layers[i]))
                        : layer.attention->step(runtime, x, std::get<AttentionState<T>>(state.layers[i]));
  });
  return head_->logits(runtime, last);
}

template class HybridLm<float>;
template class HybridLm<double>;

}  // namespace deltaport
