// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/hybrid_lm.hpp"

#include "deltaport/core/segments.hpp"
#include "model/prefill_chunks.hpp"

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
      layer.linear =
          std::make_unique<GdnMixer<T>>(parameters_, prefix + ".linear_attn", config_, options.recurrence,
                                        options.norm_output, options.core_inputs, options.preparation);
      break;
    case LayerType::gdn2:
      layer.linear =
          std::make_unique<Gdn2Mixer<T>>(parameters_, prefix + ".linear_attn", config_, options.recurrence,
                                         options.norm_output, options.core_inputs, options.preparation);
      break;
    case LayerType::attention:
      layer.attention =
          std::make_unique<AttentionMixer<T>>(parameters_, prefix + ".self_attn", config_, options.attention);
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

template <class T>
Tensor<T> HybridLm<T>::norm_forward(Context& context, const RmsNorm<T>& norm, Stream& stream) {
  if (!stream.delta) return norm.forward(context, stream.residual);
  auto added = norm.forward_residual(context, stream.residual, stream.delta);
  stream.residual = std::move(added.sum);
  stream.delta = {};
  return std::move(added.normalised);
}

template <class T>
template <class Mix>
typename HybridLm<T>::Stream HybridLm<T>::layer_forward(Context& context, std::size_t i, Stream stream,
                                                        const Mix& mix) {
  {
    Tensor<T> x = norm_forward(context, *layers_[i].input_norm, stream);
    stream.delta = mix(std::move(x));
  }
  const Tensor<T> x = norm_forward(context, *layers_[i].mlp_norm, stream);
  stream.delta = layers_[i].mlp->forward(context, x);
  return stream;
}

template <class T>
Tensor<T> HybridLm<T>::mix(Context& context, std::size_t i, Tensor<T> x, const Sequences& sequences) {
  const auto body = [&, i](AnyTensors in) -> AnyTensors {
    const Layer& layer = layers_[i];
    const Tensor<T> input = in[0].as<T>();
    in.clear();
    return {layer.linear ? layer.linear->forward(context, input, sequences)
                         : layer.attention->forward(context, input, sequences)};
  };
  return run_segment(context, SegmentLevel::mixer, concat("layer ", i, " mixer forward"), {std::move(x)}, {},
                     body)[0]
      .template as<T>();
}

template <class T>
Tensor<T> HybridLm<T>::mix_backward(Context& context, std::size_t i, Tensor<T> dy,
                                    const Sequences& sequences) {
  const auto body = [&, i](AnyTensors in) -> AnyTensors {
    const Layer& layer = layers_[i];
    const Tensor<T> d = in[0].as<T>();
    in.clear();
    return {layer.linear ? layer.linear->backward(context, d, sequences)
                         : layer.attention->backward(context, d, sequences)};
  };
  return run_segment(context, SegmentLevel::mixer, concat("layer ", i, " mixer backward"), {std::move(dy)},
                     {}, body)[0]
      .template as<T>();
}

template <class T>
Tensor<T> HybridLm<T>::layer_backward(Context& context, std::size_t i, Tensor<T> d_residual,
                                      const Sequences& sequences) {
  Layer& layer = layers_[i];
  Tensor<T> d = layer.mlp->backward(context, d_residual);
  d_residual = layer.mlp_norm->backward(context, d, d_residual);
  d = mix_backward(context, i, d_residual, sequences);
  return layer.input_norm->backward(context, d, d_residual);
}

template <class T>
typename HybridLm<T>::Stream HybridLm<T>::layers_forward(Context& context, Stream stream,
                                                         const Sequences& sequences) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto body = [&, i](AnyTensors in) -> AnyTensors {
      Stream input{in[0].as<T>(), in[1].as<T>()};
      in.clear();
      Stream output = layer_forward(context, i, std::move(input),
                                    [&](Tensor<T> x) { return mix(context, i, std::move(x), sequences); });
      return {output.residual, output.delta};
    };
    AnyTensors inputs = {stream.residual, stream.delta};
    stream = {};
    const AnyTensors outputs = run_segment(context, SegmentLevel::layer, concat("layer ", i, " forward"),
                                           std::move(inputs), {}, body);
    stream = {outputs[0].as<T>(), outputs[1].as<T>()};
    flush_saved(context);
  }
  return stream;
}

template <class T>
Tensor<T> HybridLm<T>::layers_backward(Context& context, Tensor<T> d_residual, const Sequences& sequences) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const auto body = [&, i](AnyTensors in) -> AnyTensors {
      Tensor<T> d = in[0].as<T>();
      in.clear();
      return {layer_backward(context, i, std::move(d), sequences)};
    };
    prepare_saved(context);
    AnyTensors inputs = {d_residual};
    d_residual = {};
    d_residual = run_segment(context, SegmentLevel::layer, concat("layer ", i, " backward"),
                             std::move(inputs), {}, body)[0]
                     .template as<T>();
  }
  return d_residual;
}

template <class T>
Tensor<T> HybridLm<T>::hidden(Context& context, const Tensor<std::int32_t>& tokens,
                              const Sequences& sequences) {
  validate("hidden", tokens, sequences);
  Stream stream = layers_forward(context, {embedding_->forward(context, tokens), {}}, sequences);
  return norm_forward(context, *final_norm_, stream);
}

template <class T>
void HybridLm<T>::hidden_backward(Context& context, const Tensor<T>& d_hidden, const Sequences& sequences) {
  Tensor<T> d_residual = final_norm_->backward(context, d_hidden);
  d_residual = layers_backward(context, std::move(d_residual), sequences);
  embedding_->backward(context, d_residual);
}

template <class T>
Tensor<T> HybridLm<T>::loss(Context& context, Stream stream, const MicroBatch& batch) {
  const auto body = [&](AnyTensors in) -> AnyTensors {
    Stream input{in[0].as<T>(), in[1].as<T>()};
    in.clear();
    Tensor<T> d_hidden;
    {
      const Tensor<T> last = norm_forward(context, *final_norm_, input);
      input = {};
      head_->forward_backward(context, last, batch.labels, batch.gradient_scale, batch.loss_sum, d_hidden);
    }
    return {final_norm_->backward(context, d_hidden)};
  };
  AnyTensors inputs = {stream.residual, stream.delta};
  stream = {};
  return run_segment(context, SegmentLevel::layer, "loss", std::move(inputs), {batch.loss_sum}, body)[0]
      .template as<T>();
}

template <class T>
void HybridLm<T>::micro_batch(Context& context, const MicroBatch& batch) {
  const auto body = [&](const AnyTensors&) -> AnyTensors {
    Stream stream =
        layers_forward(context, {embedding_->forward(context, batch.tokens), {}}, batch.sequences);
    Tensor<T> d_residual = loss(context, std::move(stream), batch);
    d_residual = layers_backward(context, std::move(d_residual), batch.sequences);
    embedding_->backward(context, d_residual);
    return {};
  };
  run_segment(context, SegmentLevel::step, "micro-batch", {}, {batch.loss_sum}, body);
}

template <class T>
void HybridLm<T>::forward_backward(Context& context, const Tensor<std::int32_t>& tokens,
                                   const Tensor<std::int32_t>& labels, const Sequences& sequences,
                                   const Tensor<double>& gradient_scale, const Tensor<double>& loss_sum) {
  DELTAPORT_VALIDATE(context.training(), Error, "forward_backward needs Mode::train");
  DELTAPORT_VALIDATE(context.saved.empty(), Error, "forward_backward found ", context.saved.size(),
                     " saved tensors of an earlier forward without backward; call SavedTensors::clear()");
  validate("forward_backward", tokens, sequences);
  SegmentPass pass(
      context, "micro-batch",
      {tokens, labels, sequences.cu_seqlens, sequences.positions, sequences.sequence_of, gradient_scale});
  micro_batch(context, {pass.input<std::int32_t>(0),
                        pass.input<std::int32_t>(1),
                        {pass.input<std::int32_t>(2), pass.input<std::int32_t>(3),
                         pass.input<std::int32_t>(4), sequences.row_tokens},
                        pass.input<double>(5),
                        loss_sum});
  pass.end();
}

template <class T>
void HybridLm<T>::forward_backward(Context& context, const Tensor<std::int32_t>& tokens,
                                   const Tensor<std::int32_t>& labels, const Sequences& sequences,
                                   double gradient_scale, const Tensor<double>& loss_sum) {
  const auto scale = context.runtime.template allocate<double>("gradient scale", Shape{1});
  fill(context.runtime.compute(), scale, gradient_scale);
  forward_backward(context, tokens, labels, sequences, scale, loss_sum);
}

template <class T>
void HybridLm<T>::evaluate(Context& context, const Tensor<std::int32_t>& tokens,
                           const Tensor<std::int32_t>& labels, const Sequences& sequences,
                           const Tensor<double>& loss_sum) {
  DELTAPORT_VALIDATE(!context.training(), Error, "evaluate needs Mode::evaluate");
  head_->evaluate(context, hidden(context, tokens, sequences), labels, loss_sum);
}

template <class T>
Tensor<Accumulate<T>> HybridLm<T>::logits(Context& context, const Tensor<std::int32_t>& tokens,
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
void HybridLm<T>::validate(const char* what, const DecodeState<T>& state) const {
  DELTAPORT_VALIDATE(state.layers.size() == layers_.size(), ShapeError, what, ": the state has ",
                     state.layers.size(), " layers, the model ", layers_.size(), "; use make_decode_state()");
}

namespace {

// Before anything moves, so that a state that is full stays what it was.
template <class T, class Count>
void require_room(const char* what, const DecodeState<T>& state, const Count& count) {
  for (const auto& layer : state.layers) {
    const auto* attention = std::get_if<AttentionState<T>>(&layer);
    if (attention == nullptr) continue;
    for (std::size_t n = 0; n < attention->seen.size(); ++n)
      DELTAPORT_VALIDATE(attention->seen[n] + count(n) <= attention->capacity(), ShapeError, what,
                         ": sequence ", n, " has seen ", attention->seen[n],
                         " tokens and the state has room for ", attention->capacity(), "; ", count(n),
                         " more do not fit");
  }
}

}  // namespace

template <class T>
Tensor<Accumulate<T>> HybridLm<T>::prefill(Runtime& runtime,
                                           const std::vector<std::vector<std::int32_t>>& tokens,
                                           std::int64_t chunk_tokens, DecodeState<T>& state) {
  validate("prefill", state);
  DELTAPORT_VALIDATE(static_cast<std::int64_t>(tokens.size()) == state.sequences, ShapeError,
                     "prefill: tokens for ", tokens.size(), " sequences, the state has ", state.sequences);
  const std::vector<PrefillChunk> chunks = prefill_chunks(tokens, chunk_tokens);
  require_room("prefill", state, [&](std::size_t n) { return static_cast<std::int64_t>(tokens[n].size()); });
  SavedTensors nothing;
  Context context{runtime, nothing, Mode::evaluate};
  const auto last = runtime.allocate<T>("prefill hidden", Shape{state.sequences, config_.hidden_size});
  for (const PrefillChunk& chunk : chunks) {
    const auto count = static_cast<std::int64_t>(chunk.tokens.size());
    const auto input = from_vector(context.exec(), runtime.arena(), "tokens", Shape{count}, chunk.tokens);
    const Continuation run = make_continuation(runtime, chunk.cu_seqlens, chunk.first);
    Stream stream{embedding_->forward(context, input), {}};
    for (std::size_t i = 0; i < layers_.size(); ++i)
      stream = layer_forward(context, i, std::move(stream), [&](const Tensor<T>& x) {
        const Layer& layer = layers_[i];
        return layer.linear
                   ? layer.linear->prefill(runtime, x, run, std::get<LinearDecodeState<T>>(state.layers[i]))
                   : layer.attention->prefill(runtime, x, run, std::get<AttentionState<T>>(state.layers[i]));
      });
    const Tensor<T> hidden = norm_forward(context, *final_norm_, stream);
    // Of a sequence in several chunks the last one's row stays.
    for (std::int64_t m = 0; m < run.count(); ++m) {
      const std::int64_t end = run.cu_seqlens[static_cast<std::size_t>(m) + 1];
      copy(context.exec(), last.rows(run.first + m, run.first + m + 1), hidden.rows(end - 1, end));
    }
  }
  return head_->logits(runtime, last);
}

template <class T>
Tensor<Accumulate<T>> HybridLm<T>::step(Runtime& runtime, const Tensor<std::int32_t>& tokens,
                                        DecodeState<T>& state) {
  validate("step", state);
  DELTAPORT_VALIDATE(tokens.rank() == 1 && tokens.size() == state.sequences, ShapeError,
                     "step: one token for each of ", state.sequences, " sequences needed, got ",
                     tokens.shape().str());
  require_room("step", state, [](std::size_t) { return std::int64_t{1}; });
  SavedTensors nothing;
  Context context{runtime, nothing, Mode::evaluate};
  Stream stream{embedding_->forward(context, tokens), {}};
  for (std::size_t i = 0; i < layers_.size(); ++i)
    stream = layer_forward(context, i, std::move(stream), [&](const Tensor<T>& x) {
      const Layer& layer = layers_[i];
      return layer.linear ? layer.linear->step(runtime, x, std::get<LinearDecodeState<T>>(state.layers[i]))
                          : layer.attention->step(runtime, x, std::get<AttentionState<T>>(state.layers[i]));
    });
  return head_->logits(runtime, norm_forward(context, *final_norm_, stream));
}

template class HybridLm<bfloat16>;
template class HybridLm<float>;
template class HybridLm<double>;

}  // namespace deltaport
