// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deltaport/config/run_config.hpp"
#include "deltaport/core/context.hpp"
#include "deltaport/model/continuation.hpp"
#include "deltaport/model/parameters.hpp"

namespace deltaport {

/// Keys and values that N sequences have seen so far. Each has a length of its own.
template <class T>
struct AttentionState {
  Tensor<T> keys;                  ///< [N, capacity, kv_heads, head_dim], after norm and rotation
  Tensor<T> values;                ///< [N, capacity, kv_heads, head_dim]
  Tensor<std::int32_t> lengths;    ///< [N] tokens seen; the next token of a sequence has this position
  std::vector<std::int64_t> seen;  ///< the same on the host

  std::int64_t sequences() const { return keys.extent(0); }
  std::int64_t capacity() const { return keys.extent(1); }
};

/// Which kernels compute scores, softmax and their products. `portable` does all types and sizes; `cudnn` is there in
/// builds that found cuDNN.
enum class AttentionImplementation { automatic, portable, cudnn };
std::string_view name_of(AttentionImplementation implementation);
/// Whether this build has it.
bool available(AttentionImplementation implementation);

template <class T>
class AttentionCore;

/// Gated softmax attention as in Qwen3.5: q, gate, k and v by one product; zero-centred RMSNorm of q and k
/// over the head; rotary embedding (Su et al., "RoFormer", 2021; halves rotated) on the first
/// partial_rotary_factor of the head; causal attention inside each document with key heads shared by groups
/// of query heads; out * sigmoid(gate); output product. The scores are worked through in tiles with a running
/// softmax (Dao, "FlashAttention-2", 2023). No atomics; the same bits from run to run and for any thread count. The
/// portable kernels take memory of O(T) and give a document the same bits alone or packed with others; cuDNN's backward
/// takes a workspace of 2 bytes a score, and packing may change the last bit. x and y are [T, hidden_size]. Enqueued on the compute
/// stream; outputs come from the arena.
template <class T>
class AttentionMixer {
 public:
  /// Declares "<prefix>.q_proj.weight" [2 num_heads head_dim, hidden_size] (each head: query rows, then gate
  /// rows),
  /// "<prefix>.k_proj.weight" and "<prefix>.v_proj.weight" [num_kv_heads head_dim, hidden_size] as one fused
  /// block,
  /// "<prefix>.o_proj.weight" [hidden_size, num_heads head_dim], "<prefix>.q_norm.weight" and
  /// "<prefix>.k_norm.weight" [head_dim]. Throws ConfigError unless num_heads is a multiple of num_kv_heads
  /// and the rotated width is even and at most head_dim.
  AttentionMixer(ParameterSet<T>& parameters, const std::string& prefix, const ModelConfig& config,
                 AttentionImplementation implementation = AttentionImplementation::automatic);

  /// In training mode saves x (shared), the projections, the rotation table, and in group "attn_core" q, k,
  /// the output before the gate and the logarithms of the softmax sums.
  Tensor<T> forward(Context& context, const Tensor<T>& x, const Sequences& sequences) const;
  /// Returns dx and adds to the weights' gradients.
  Tensor<T> backward(Context& context, const Tensor<T>& dy, const Sequences& sequences) const;

  /// Room for `capacity` tokens of each of N sequences; at most 2^31 - 1 (ShapeError).
  AttentionState<T> make_state(Runtime& runtime, std::int64_t sequences, std::int64_t capacity) const;
  /// Advances every sequence by one token: x [N, hidden_size] -> [N, hidden_size]. Throws ShapeError when the
  /// state is full.
  Tensor<T> step(Runtime& runtime, const Tensor<T>& x, AttentionState<T>& state) const;
  /// Advances the run's sequences by its T tokens, any number each: x [T, hidden_size] -> [T, hidden_size],
  /// as forward() has them in the whole documents. Always by the portable kernels. Throws ShapeError where
  /// the state has no room.
  Tensor<T> prefill(Runtime& runtime, const Tensor<T>& x, const Continuation& run,
                    AttentionState<T>& state) const;

 private:
  struct Projected;
  Projected project(Runtime& runtime, const Tensor<T>& x, const std::int32_t* positions) const;
  Tensor<T> gate_and_project(Runtime& runtime, const Tensor<T>& projections, const Tensor<T>& attended) const;
  std::int64_t projected_width() const { return 2 * (heads_ + kv_heads_) * head_dim_; }

  std::int64_t hidden_, heads_, kv_heads_, head_dim_, rotary_dim_;
  double rope_theta_, eps_;
  std::string prefix_;
  Parameter<T> qkv_, out_, q_norm_, k_norm_;
  std::shared_ptr<AttentionCore<T>> core_;
};

}  // namespace deltaport
