// SPDX-License-Identifier: Apache-2.0
#include "model/attention_core.hpp"

#include "model/cudnn/attention.hpp"

namespace deltaport {

std::string_view name_of(AttentionImplementation implementation) {
  switch (implementation) {
    case AttentionImplementation::portable:
      return "portable";
    case AttentionImplementation::cudnn:
      return "cudnn";
    default:
      return "auto";
  }
}

bool available(AttentionImplementation implementation) {
  return implementation != AttentionImplementation::cudnn || cudnn::available();
}

namespace {

/// Rows of whole tiles. Others would be planned anew for each length, which costs more than it gains where
/// lengths change from call to call, as prompts' do.
bool is_cut_to_tiles(const AttentionShape& shape, const Sequences& sequences) {
  return shape.tokens % 128 == 0 && sequences.row_tokens % 128 == 0;
}

}  // namespace

/// The engine for a call, or nullptr where the portable kernels do it.
template <class T>
cudnn::Attention* AttentionCore<T>::engine(Runtime& runtime, const AttentionShape& shape,
                                           const Sequences& sequences, bool backward) {
  const bool forced = implementation_ == AttentionImplementation::cudnn;
  if (implementation_ == AttentionImplementation::portable || (!forced && !cudnn::available()))
    return nullptr;
  if (std::is_same_v<T, bfloat16> && (forced || is_cut_to_tiles(shape, sequences))) {
    if (!cudnn_) cudnn_ = cudnn::Attention::of(runtime);
    const auto direction = backward ? cudnn::Direction::backward : cudnn::Direction::forward;
    if (cudnn_ && cudnn_->takes(direction, shape, sequences)) return cudnn_.get();
  }
  DELTAPORT_VALIDATE(
      !forced, ShapeError, "attention: implementation cudnn cannot do T = ", deltaport::name_of(dtype_of<T>),
      ", ", shape.tokens, " tokens, ", shape.heads, " / ", shape.kv_heads,
      " heads, head_dim = ", shape.head_dim, "; it does ", cudnn::limits(), ". auto or portable do any");
  return nullptr;
}

template <class T>
void AttentionCore<T>::forward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences,
                               const T* q, const T* k, const T* v, T* o, Accumulate<T>* logsumexp) {
  if (shape.tokens == 0) return;
  cudnn::Attention* const fused = engine(runtime, shape, sequences, false);
  if constexpr (std::is_same_v<T, bfloat16>)
    if (fused != nullptr) return fused->forward(shape, sequences, q, k, v, o, logsumexp);
  attention_forward<T>(runtime, shape, sequences, q, k, v, o, logsumexp);
}

template <class T>
AttentionGradients<T> AttentionCore<T>::backward(Runtime& runtime, const AttentionShape& shape,
                                                 const Sequences& sequences, const T* q, const T* k,
                                                 const T* v, const T* o, const Accumulate<T>* logsumexp,
                                                 const Accumulate<T>* delta, const T* d_o, T* dv) {
  AttentionGradients<T> d;
  const Shape queries{shape.tokens, shape.heads, shape.head_dim},
      keys{shape.tokens, shape.kv_heads, shape.head_dim};
  cudnn::Attention* const fused = shape.tokens > 0 ? engine(runtime, shape, sequences, true) : nullptr;
  if constexpr (std::is_same_v<T, bfloat16>)
    if (fused != nullptr) {
      d.rounded_q = runtime.allocate<T>("attention dq", queries);
      d.rounded_k = runtime.allocate<T>("attention dk", keys);
      fused->backward(shape, sequences, q, k, v, o, logsumexp, d_o, d.rounded_q.data(), d.rounded_k.data(),
                      dv);
      return d;
    }
  d.q = runtime.allocate<Accumulate<T>>("attention dq", queries);
  d.k = runtime.allocate<Accumulate<T>>("attention dk", keys);
  attention_backward<T>(runtime, shape, sequences, q, k, v, logsumexp, delta, d_o, d.q.data(), d.k.data(),
                        dv);
  return d;
}

template class AttentionCore<bfloat16>;
template class AttentionCore<float>;
template class AttentionCore<double>;

}  // namespace deltaport
