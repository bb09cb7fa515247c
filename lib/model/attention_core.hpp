// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/context.hpp"
#include "deltaport/core/parallel.hpp"
#include "deltaport/model/attention_mixer.hpp"

namespace deltaport::cudnn {
class Attention;
}

namespace deltaport {

/// Tokens of one tile of queries or keys.
inline constexpr std::int64_t attention_tile = runs_on_host ? 64 : 32;

/// Sizes and strides of causal attention over packed documents. q, o and their gradients are dense
/// [T, heads, head_dim]; k, dk dense [T, kv_heads, head_dim]; v and dv have rows of `value_stride` elements,
/// so that they can be slices of a wider tensor.
struct AttentionShape {
  std::int64_t tokens = 0, heads = 0, kv_heads = 0, head_dim = 0, value_stride = 0;
  double scale = 1.0;
};

/// Where tiles start. Tiles are cut from the start of each document, so that a document's arithmetic does not
/// depend on what it is packed with.
struct AttentionTiles {
  Tensor<std::int32_t> start;  ///< [slots]: first token of a tile, -1 for an unused slot
  std::int64_t slots() const { return start.extent(0); }
};
AttentionTiles make_attention_tiles(Runtime& runtime, const Sequences& sequences);

/// o = softmax(scale q k^T, causal, inside documents) v and logsumexp [heads, T] of the scaled scores. Sums
/// run in Accumulate<T>; o is rounded once (where T is a half its sums take a tensor of their own from the
/// arena).
template <class T>
void attention_forward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
                       const T* k, const T* v, T* o, Accumulate<T>* logsumexp);

/// The same for documents that began earlier: keys and values [N, capacity, kv_heads, head_dim] hold them
/// from their start on, those of this run included, and lengths[n] of sequence n's are older than this run.
/// Of the shape, value_stride is kv_heads * head_dim.
template <class T>
void attention_cached(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences,
                      const std::int32_t* lengths, std::int64_t capacity, const T* q, const T* keys,
                      const T* values, T* o);

/// Gradients of q, k and v (overwritten). delta [heads, T] is the sum over the head of o do. dq and dk are
/// left in the type of the sums, for the kernel that takes them on; dv is rounded once.
template <class T>
void attention_backward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
                        const T* k, const T* v, const Accumulate<T>* logsumexp, const Accumulate<T>* delta,
                        const T* d_o, Accumulate<T>* dq, Accumulate<T>* dk, T* dv);

/// Gradients of q and k for the kernel that takes them on: sums, or rounded ones where the implementation gives those.
template <class T>
struct AttentionGradients {
  Tensor<Accumulate<T>> q, k;
  Tensor<T> rounded_q, rounded_k;
};

/// The core by one of its implementations. All keep the same logsumexp, so that backward may be done by another one than
/// forward. Which one `automatic` takes depends on sizes alone: cuDNN for bfloat16 in rows of whole tiles of 128 tokens
/// where it has an engine, else the kernels above.
template <class T>
class AttentionCore {
 public:
  explicit AttentionCore(AttentionImplementation implementation) : implementation_(implementation) {}

  /// As attention_forward(). Throws ShapeError when the implementation asked for cannot do it.
  void forward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences, const T* q,
               const T* k, const T* v, T* o, Accumulate<T>* logsumexp);
  /// As attention_backward(); o is what forward gave.
  AttentionGradients<T> backward(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences,
                                 const T* q, const T* k, const T* v, const T* o,
                                 const Accumulate<T>* logsumexp, const Accumulate<T>* delta, const T* d_o,
                                 T* dv);

 private:
  cudnn::Attention* engine(Runtime& runtime, const AttentionShape& shape, const Sequences& sequences,
                           bool backward);

  AttentionImplementation implementation_;
  std::shared_ptr<cudnn::Attention> cudnn_;
};

}  // namespace deltaport
