// SPDX-License-Identifier: Apache-2.0
#include "model/cudnn/attention_graph.hpp"

namespace deltaport::cudnn {
namespace {

using Id = Graph::Id;
constexpr Id none = Graph::none;
constexpr cudnnDataType_t half = CUDNN_DATA_BFLOAT16;

/// The last two extents or strides exchanged.
Extents transposed(const Extents& e) {
  return {e[0], e[1], e[3], e[2]};
}

/// What forward and backward have in common: the tensors and the masked scores.
struct AttentionGraph {
  Graph graph;
  AttentionProblem p;
  AttentionIds id;
  Extents scores, query, key, row;
  Extents query_strides, key_strides, value_strides, row_strides;

  explicit AttentionGraph(const AttentionProblem& problem)
      : p(problem),
        scores{p.batch, p.heads, p.tokens, p.tokens},
        query{p.batch, p.heads, p.tokens, p.head_dim},
        key{p.batch, p.kv_heads, p.tokens, p.head_dim},
        row{p.batch, p.heads, p.tokens, 1},
        query_strides{p.tokens * p.heads * p.head_dim, p.head_dim, p.heads * p.head_dim, 1},
        key_strides{p.tokens * p.kv_heads * p.head_dim, p.head_dim, p.kv_heads * p.head_dim, 1},
        value_strides{p.tokens * p.value_stride, p.head_dim, p.value_stride, 1},
        row_strides{p.tokens, p.batch * p.tokens, 1, 1} {
    id.q = graph.tensor(query, query_strides, half);
    id.k = graph.tensor(transposed(key), transposed(key_strides), half);
    id.o = graph.tensor(query, query_strides, half);
    id.logsumexp = graph.tensor(row, row_strides, CUDNN_DATA_FLOAT);
    if (p.packed)
      id.document_start =
          graph.tensor({p.batch, 1, p.tokens, 1}, {p.tokens, p.tokens, 1, 1}, CUDNN_DATA_INT32);
    id.scale = graph.scalar();
    id.minus_infinity = graph.scalar();
  }

  Id row_value() { return graph.intermediate(row); }
  Id unary(cudnnPointwiseMode_t mode, Id a) {
    const Id y = graph.intermediate(scores);
    graph.pointwise(mode, a, y, {});
    return y;
  }
  Id binary(cudnnPointwiseMode_t mode, Id a, Id b) {
    const Id y = graph.intermediate(scores);
    graph.pointwise(mode, a, y, {b, none});
    return y;
  }
  Id position(std::int64_t axis, Id x) {
    const Id y = graph.intermediate(scores, CUDNN_DATA_INT32);
    graph.index(axis, x, y, CUDNN_DATA_FLOAT);
    return y;
  }
  /// x where a >= b, minus infinity elsewhere.
  Id keep_where_not_less(Id x, Id a, Id b) {
    const Id mask = graph.intermediate(scores, CUDNN_DATA_BOOLEAN), y = graph.intermediate(scores);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, a, mask, {b, none}, CUDNN_DATA_BOOLEAN);
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, y, {id.minus_infinity, mask});
    return y;
  }
  Id scaled_scores() {
    const Id product = graph.intermediate(scores);
    graph.matmul(id.q, id.k, product);
    return binary(CUDNN_POINTWISE_MUL, product, id.scale);
  }
  Id masked(Id x) {
    const Id rows = position(2, x), columns = position(3, x);
    const Id causal = keep_where_not_less(x, rows, columns);
    return p.packed ? keep_where_not_less(causal, position(3, causal), id.document_start) : causal;
  }
};

struct ForwardGraph : AttentionGraph {
  explicit ForwardGraph(const AttentionProblem& problem) : AttentionGraph(problem) {
    id.v = graph.tensor(key, value_strides, half);
    const Id x = masked(scaled_scores());
    const Id top = row_value(), sum = row_value(), log = row_value();
    graph.reduce(CUDNN_REDUCE_TENSOR_MAX, x, top);
    const Id powers = unary(CUDNN_POINTWISE_EXP, binary(CUDNN_POINTWISE_SUB, x, top));
    graph.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
    graph.pointwise(CUDNN_POINTWISE_LOG, sum, log, {});
    graph.pointwise(CUDNN_POINTWISE_ADD, top, id.logsumexp, {log, none});
    const Id shares = graph.intermediate(scores, half);
    graph.pointwise(CUDNN_POINTWISE_DIV, powers, shares, {sum, none});
    graph.matmul(shares, id.v, id.o);
  }
};

struct BackwardGraph : AttentionGraph {
  explicit BackwardGraph(const AttentionProblem& problem) : AttentionGraph(problem) {
    id.one = graph.scalar();
    id.v = graph.tensor(transposed(key), transposed(value_strides), half);
    id.d_o = graph.tensor(query, query_strides, half);
    id.dq = graph.tensor(query, query_strides, half);
    id.dk = graph.tensor(key, key_strides, half);
    id.dv = graph.tensor(key, value_strides, half);
    id.delta = graph.tensor(row, row_strides, CUDNN_DATA_FLOAT);
    delta();
    const Id shifted = binary(CUDNN_POINTWISE_SUB, scaled_scores(), id.logsumexp);
    const Id shares = unary(CUDNN_POINTWISE_EXP, masked(shifted));
    key_product(shares, id.d_o, id.dv);
    const Id products = graph.intermediate(scores);
    graph.matmul(id.d_o, id.v, products);
    const Id centred = binary(CUDNN_POINTWISE_SUB, products, id.delta);
    const Id ds = binary(CUDNN_POINTWISE_MUL, binary(CUDNN_POINTWISE_MUL, centred, shares), id.scale);
    key_product(ds, id.q, id.dk);
    const Id keys = graph.intermediate(key, key_strides, CUDNN_DATA_FLOAT);
    graph.reshape(id.k, keys);
    graph.matmul(ds, keys, id.dq);
  }

  void delta() {
    const Id products = graph.intermediate(
        query, {p.heads * p.tokens * p.head_dim, p.tokens * p.head_dim, p.heads * p.head_dim, 1},
        CUDNN_DATA_FLOAT);
    const Id sum = row_value();
    graph.pointwise(CUDNN_POINTWISE_MUL, id.d_o, products, {id.o, none});
    graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sum);
    // Where dropout would scale it; the pattern wants an operation here.
    graph.pointwise(CUDNN_POINTWISE_MUL, sum, id.delta, {id.one, none});
  }

  /// out = sum of x^T y over the query heads of each key head.
  void key_product(Id x, Id y, Id out) {
    const std::int64_t all = p.tokens * p.tokens;
    const Id turned = graph.intermediate(transposed(scores), {p.heads * all, all, 1, p.tokens}, half);
    graph.reshape(x, turned);
    if (p.heads == p.kv_heads) return graph.matmul(turned, y, out);
    const Id every_head = graph.intermediate(query, half);
    graph.matmul(turned, y, every_head);
    graph.reduce(CUDNN_REDUCE_TENSOR_ADD, every_head, out);
  }
};

}  // namespace

AttentionPlan plan_attention_forward(cudnnHandle_t handle, const AttentionProblem& problem,
                                     std::int64_t workspace_limit) {
  ForwardGraph forward(problem);
  return {forward.graph.plan(handle, workspace_limit), forward.id};
}

AttentionPlan plan_attention_backward(cudnnHandle_t handle, const AttentionProblem& problem,
                                      std::int64_t workspace_limit) {
  BackwardGraph backward(problem);
  return {backward.graph.plan(handle, workspace_limit), backward.id};
}

}  // namespace deltaport::cudnn
