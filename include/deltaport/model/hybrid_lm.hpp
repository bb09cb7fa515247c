// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "deltaport/model/attention_mixer.hpp"
#include "deltaport/model/embedding.hpp"
#include "deltaport/model/gdn2_mixer.hpp"
#include "deltaport/model/gdn_mixer.hpp"
#include "deltaport/model/linear_cross_entropy.hpp"
#include "deltaport/model/mlp.hpp"
#include "deltaport/model/rms_norm.hpp"

namespace deltaport {

struct LmOptions {
  std::int64_t loss_chunk_tokens = 1024;  ///< rows of logits alive at once
  recurrence::Implementation recurrence = recurrence::Implementation::automatic;
  NormOutput norm_output = NormOutput::recompute;  ///< of GDN and GDN2 layers
  AttentionImplementation attention = AttentionImplementation::automatic;
  CoreInputs core_inputs = CoreInputs::recompute_gates;  ///< of GDN and GDN2 layers
  Preparation preparation = Preparation::recompute;      ///< of GDN and GDN2 layers
};

/// What a HybridLm remembers of N sequences between tokens: one entry per layer, in order.
template <class T>
struct DecodeState {
  std::vector<std::variant<LinearDecodeState<T>, AttentionState<T>>> layers;
  std::int64_t sequences = 0;
};

/// Decoder-only language model whose layers mix tokens by GDN, GDN2 or gated attention, in the order that the
/// configuration gives:
///   x = embed(tokens); per layer: x += mixer(norm(x)), x += mlp(norm(x)); logits = norm(x) W^T
/// with W the embedding (tied) or "lm_head.weight". Parameter names are Hugging Face's:
/// "model.embed_tokens.weight", "model.layers.N.{input_layernorm,post_attention_layernorm}.weight",
/// "model.layers.N.{linear_attn,self_attn,mlp}...", "model.norm.weight".
///
/// T tokens of packed documents are one flat run; `sequences` says where documents begin. tokens and labels
/// are int32 [T] in the execution space's memory; label -100 is ignored. All work is enqueued on the
/// runtime's compute stream; activations come from its arena and are gone when the call returns. T, the type of
/// weights and activations, is bfloat16, float or double; logits, loss, gradients of parameters and every sum are
/// Accumulate<T>. Call parameters().allocate() and initialize() before anything that computes.
template <class T>
class HybridLm {
 public:
  /// Declares all parameters. Throws ConfigError naming what does not fit.
  explicit HybridLm(const ModelConfig& config, const LmOptions& options = {});
  HybridLm(const HybridLm&) = delete;
  HybridLm& operator=(const HybridLm&) = delete;

  ParameterSet<T>& parameters() { return parameters_; }
  const ParameterSet<T>& parameters() const { return parameters_; }
  const ModelConfig& config() const { return config_; }

  /// One micro-batch: adds the loss (a sum over valid tokens) to loss_sum [1] and gradient_scale times its
  /// gradient to the parameters' gradients. Needs Mode::train and empty saved tensors, and leaves them empty.
  /// gradient_scale [1] is read on the device. With context.segments this is the pass "micro-batch": one segment of
  /// level step, one per layer and direction and one for the loss of level layer, one per mixer and direction of
  /// level mixer.
  void forward_backward(Context& context, const Tensor<std::int32_t>& tokens,
                        const Tensor<std::int32_t>& labels, const Sequences& sequences,
                        const Tensor<double>& gradient_scale, const Tensor<double>& loss_sum);
  /// The same with a scale from the host; enqueues taking it to the device.
  void forward_backward(Context& context, const Tensor<std::int32_t>& tokens,
                        const Tensor<std::int32_t>& labels, const Sequences& sequences, double gradient_scale,
                        const Tensor<double>& loss_sum);

  /// Adds the loss to loss_sum [1]; saves nothing. Needs Mode::evaluate.
  void evaluate(Context& context, const Tensor<std::int32_t>& tokens, const Tensor<std::int32_t>& labels,
                const Sequences& sequences, const Tensor<double>& loss_sum);

  /// Final hidden states [T, D], after the last norm. In training mode they are saved for a backward.
  Tensor<T> hidden(Context& context, const Tensor<std::int32_t>& tokens, const Sequences& sequences);
  /// Backward of hidden() for its gradient [T, D].
  void hidden_backward(Context& context, const Tensor<T>& d_hidden, const Sequences& sequences);
  /// All logits [T, vocab]: for small inputs only.
  Tensor<Accumulate<T>> logits(Context& context, const Tensor<std::int32_t>& tokens,
                               const Sequences& sequences);

  /// State of N sequences before their first token, with room for `capacity` tokens each (attention layers
  /// only).
  DecodeState<T> make_decode_state(Runtime& runtime, std::int64_t sequences, std::int64_t capacity) const;
  /// The next tokens of every sequence, on the host, any number but none: logits [N, vocab] after the last of
  /// each. They go through the layers as one packed run, cut every `chunk_tokens`, whatever sequence that
  /// falls in; memory is that of one such chunk. Moves the state on, which may have seen tokens before. Equal
  /// to steps, and to the model's forward over whole sequences, but for rounding. Throws ShapeError naming
  /// what does not fit; fences the compute stream once for each chunk.
  Tensor<Accumulate<T>> prefill(Runtime& runtime, const std::vector<std::vector<std::int32_t>>& tokens,
                                std::int64_t chunk_tokens, DecodeState<T>& state);
  /// One token of each sequence, int32 [N] -> logits [N, vocab]; moves the state on.
  Tensor<Accumulate<T>> step(Runtime& runtime, const Tensor<std::int32_t>& tokens, DecodeState<T>& state);

 private:
  struct Layer {
    std::unique_ptr<RmsNorm<T>> input_norm;
    std::unique_ptr<LinearMixer<T>> linear;        // one of these two
    std::unique_ptr<AttentionMixer<T>> attention;  //
    std::unique_ptr<RmsNorm<T>> mlp_norm;
    std::unique_ptr<Mlp<T>> mlp;
  };
  Layer make_layer(std::int64_t index, const LmOptions& options);
  /// What flows from layer to layer; their sum is a layer's input. Every norm adds the two in the same pass.
  struct Stream {
    Tensor<T> residual;
    Tensor<T> delta;  ///< empty before the first layer
  };
  /// A batch where captured work may read it.
  struct MicroBatch {
    Tensor<std::int32_t> tokens, labels;
    Sequences sequences;
    Tensor<double> gradient_scale, loss_sum;
  };
  Tensor<T> norm_forward(Context& context, const RmsNorm<T>& norm, Stream& stream);
  /// Layer i; mix(x) is its mixer.
  template <class Mix>
  Stream layer_forward(Context& context, std::size_t i, Stream stream, const Mix& mix);
  Tensor<T> mix(Context& context, std::size_t i, Tensor<T> x, const Sequences& sequences);
  Tensor<T> layer_backward(Context& context, std::size_t i, Tensor<T> d_residual, const Sequences& sequences);
  Tensor<T> mix_backward(Context& context, std::size_t i, Tensor<T> dy, const Sequences& sequences);
  /// All layers, each a segment.
  Stream layers_forward(Context& context, Stream stream, const Sequences& sequences);
  Tensor<T> layers_backward(Context& context, Tensor<T> d_residual, const Sequences& sequences);
  /// Last norm and loss, and back: the gradient of the stream.
  Tensor<T> loss(Context& context, Stream stream, const MicroBatch& batch);
  void micro_batch(Context& context, const MicroBatch& batch);
  void validate(const char* what, const Tensor<std::int32_t>& tokens, const Sequences& sequences) const;
  void validate(const char* what, const DecodeState<T>& state) const;

  ModelConfig config_;
  ParameterSet<T> parameters_;
  std::unique_ptr<Embedding<T>> embedding_;
  std::vector<Layer> layers_;
  std::unique_ptr<RmsNorm<T>> final_norm_;
  std::unique_ptr<LinearCrossEntropy<T>> head_;
};

}  // namespace deltaport
