// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>

#include "model/cudnn/graph.hpp"

namespace deltaport::cudnn {

/// Causal attention in bfloat16 over `batch` rows of `tokens` tokens one behind the other, T in all. q and o are
/// [T, heads, head_dim], k [T, kv_heads, head_dim]; rows of v are value_stride elements apart. With `packed` a row may
/// hold several documents, which do not see each other.
struct AttentionProblem {
  std::int64_t batch = 1, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0, value_stride = 0;
  bool packed = false;
  auto operator<=>(const AttentionProblem&) const = default;
};

/// Ids of the tensors on the boundary of both graphs; those that a graph does not have are Graph::none.
struct AttentionIds {
  Graph::Id q = Graph::none, k = Graph::none, v = Graph::none, o = Graph::none;
  Graph::Id logsumexp = Graph::none;       ///< float32 [heads, T]
  Graph::Id document_start = Graph::none;  ///< int32 [T]: where in its row the document of a token begins
  Graph::Id d_o = Graph::none, dq = Graph::none, dk = Graph::none, dv = Graph::none;
  Graph::Id delta = Graph::none;  ///< float32 [heads, T], written by backward: sum over the head of o do
  Graph::Id scale = Graph::none, one = Graph::none, minus_infinity = Graph::none;  ///< float32 on the host
};

struct AttentionPlan {
  Plan plan;
  AttentionIds ids;
};

/// The graphs are those of Dao, "FlashAttention-2", 2023: softmax with the log-sum-exp kept, and its backward. dq is
/// the product itself, not a sum that blocks add to, so that engines exist that give the same bits each time; they keep
/// the gradients of the scores in their workspace, which therefore grows with tokens^2.
AttentionPlan plan_attention_forward(cudnnHandle_t handle, const AttentionProblem& problem,
                                     std::int64_t workspace_limit);
AttentionPlan plan_attention_backward(cudnnHandle_t handle, const AttentionProblem& problem,
                                      std::int64_t workspace_limit);

}  // namespace deltaport::cudnn
