// SPDX-License-Identifier: Apache-2.0
// Attention, loss and feed-forward in bfloat16 against the same in double on the same numbers.
#include "deltaport/model/linear_cross_entropy.hpp"
#include "deltaport/model/mlp.hpp"
#include "model/attention_core.hpp"
#include "model/attention_project.hpp"
#include "model/bfloat16.hpp"

namespace deltaport {
namespace {
using namespace testing;

// Two tiles and a rest, and a document of one token.
struct AttentionCase {
  std::int64_t head_dim = 24, heads = 4, kv_heads = 2, tokens = 150;
  std::vector<std::int32_t> cu = {0, 1, 150};
  AttentionShape shape() const { return {tokens, heads, kv_heads, head_dim, kv_heads * head_dim, 0.3}; }
};

TEST(Bfloat16, AttentionRoundsItsOutputOnce) {
  Runtime runtime;
  const AttentionCase c;
  const Shape queries{c.tokens, c.heads, c.head_dim}, keys{c.tokens, c.kv_heads, c.head_dim},
      rows{c.heads, c.tokens};
  const Sequences seqs = make_sequences(runtime, c.cu, c.tokens);
  const Pair q = random_pair(runtime, queries, 1), k = random_pair(runtime, keys, 2),
             v = random_pair(runtime, keys, 3), d_o = random_pair(runtime, queries, 4);
  const auto half_o = runtime.allocate<bfloat16>("o", queries);
  const auto o = runtime.allocate<double>("o", queries);
  const auto half_lse = runtime.allocate<float>("lse", rows);
  const auto lse = runtime.allocate<double>("lse", rows);
  attention_forward<bfloat16>(runtime, c.shape(), seqs, q.half.data(), k.half.data(), v.half.data(),
                              half_o.data(), half_lse.data());
  attention_forward<double>(runtime, c.shape(), seqs, q.exact.data(), k.exact.data(), v.exact.data(),
                            o.data(), lse.data());
  expect_rounded("o", host(runtime, half_o), host(runtime, o));
  expect_unrounded("lse", host(runtime, half_lse), host(runtime, lse));

  const WidePair delta = random_wide_pair(runtime, rows, 5);
  const auto half_dq = runtime.allocate<float>("dq", queries), half_dk = runtime.allocate<float>("dk", keys);
  const auto half_dv = runtime.allocate<bfloat16>("dv", keys);
  const auto dq = runtime.allocate<double>("dq", queries), dk = runtime.allocate<double>("dk", keys),
             dv = runtime.allocate<double>("dv", keys);
  attention_backward<bfloat16>(runtime, c.shape(), seqs, q.half.data(), k.half.data(), v.half.data(),
                               half_lse.data(), delta.single.data(), d_o.half.data(), half_dq.data(),
                               half_dk.data(), half_dv.data());
  attention_backward<double>(runtime, c.shape(), seqs, q.exact.data(), k.exact.data(), v.exact.data(),
                             lse.data(), delta.exact.data(), d_o.exact.data(), dq.data(), dk.data(),
                             dv.data());
  expect_unrounded("dq", host(runtime, half_dq), host(runtime, dq));
  expect_unrounded("dk", host(runtime, half_dk), host(runtime, dk));
  expect_rounded("dv", host(runtime, half_dv), host(runtime, dv));
}

TEST(Bfloat16, HeadNormsRotationAndGateRoundOnce) {
  Runtime runtime;
  const AttentionLayout layout{4, 2, 24, 12};
  const std::int64_t tokens = 37;
  const Pair projections = random_pair(runtime, {tokens, layout.width()}, 1),
             qw = random_pair(runtime, {24}, 2, 0.3), kw = random_pair(runtime, {24}, 3, 0.3);
  const auto half_table = runtime.allocate<float>("table", {tokens, 12});
  const auto table = runtime.allocate<double>("table", {tokens, 12});
  rotation_table<bfloat16>(runtime, tokens, 12, 1e4, nullptr, 5, half_table.data());
  rotation_table<double>(runtime, tokens, 12, 1e4, nullptr, 5, table.data());
  const Shape queries{tokens, 4, 24}, keys{tokens, 2, 24};
  const auto half_q = runtime.allocate<bfloat16>("q", queries),
             half_k = runtime.allocate<bfloat16>("k", keys);
  const auto q = runtime.allocate<double>("q", queries), k = runtime.allocate<double>("k", keys);
  const HeadNorms<bfloat16> half_norms{qw.half.data(), kw.half.data(), 1e-6};
  const HeadNorms<double> norms{qw.exact.data(), kw.exact.data(), 1e-6};
  norm_and_rotate<bfloat16>(runtime, tokens, layout, half_norms, projections.half.data(), half_table.data(),
                            half_q.data(), half_k.data());
  norm_and_rotate<double>(runtime, tokens, layout, norms, projections.exact.data(), table.data(), q.data(),
                          k.data());
  expect_rounded("q", host(runtime, half_q), host(runtime, q));
  expect_rounded("k", host(runtime, half_k), host(runtime, k));

  const WidePair dq = random_wide_pair(runtime, queries, 4), dk = random_wide_pair(runtime, keys, 5);
  const auto half_d = runtime.allocate_zero<bfloat16>("d", projections.half.shape());
  const auto d = runtime.allocate_zero<double>("d", projections.half.shape());
  const auto half_dw = runtime.allocate_zero<float>("dw", {2, 24});
  const auto dw = runtime.allocate_zero<double>("dw", {2, 24});
  norm_and_rotate_backward<bfloat16>(runtime, tokens, layout, half_norms, projections.half.data(),
                                     half_table.data(), dq.single.data(), dk.single.data(), half_d.data(),
                                     half_dw.data(), half_dw.data() + 24);
  norm_and_rotate_backward<double>(runtime, tokens, layout, norms, projections.exact.data(), table.data(),
                                   dq.exact.data(), dk.exact.data(), d.data(), dw.data(), dw.data() + 24);
  expect_rounded("d_projections", host(runtime, half_d), host(runtime, d));
  expect_unrounded("norm weights", host(runtime, half_dw), host(runtime, dw));

  const Pair o = random_pair(runtime, queries, 6), dy = random_pair(runtime, queries, 7);
  const auto half_y = runtime.allocate<bfloat16>("y", queries);
  const auto y = runtime.allocate<double>("y", queries);
  const auto half_delta = runtime.allocate<float>("delta", {4, tokens});
  const auto delta = runtime.allocate<double>("delta", {4, tokens});
  apply_gate_backward<bfloat16>(runtime, tokens, layout, projections.half.data(), o.half.data(),
                                dy.half.data(), half_y.data(), half_d.data(), half_delta.data());
  apply_gate_backward<double>(runtime, tokens, layout, projections.exact.data(), o.exact.data(),
                              dy.exact.data(), y.data(), d.data(), delta.data());
  expect_rounded("y", host(runtime, half_y), host(runtime, y));
  expect_rounded("d_projections with gates", host(runtime, half_d), host(runtime, d));
  expect_rounded("do", host(runtime, dy.half), host(runtime, dy.exact));
  // delta is the sum of 24 products with rounded do, so that it stays the mean of the very scores' gradients.
  expect_within("delta", host(runtime, half_delta), host(runtime, delta),
                [&](std::size_t) { return half_unit * 24 * 4.0 * 4.0; });
}

/// The loss of logits that are rounded once to bfloat16, in double.
double loss_of_rounded(const std::vector<float>& logits, const std::vector<std::int32_t>& labels) {
  const std::size_t vocab = logits.size() / labels.size();
  double loss = 0.0;
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] == ignored_label) continue;
    const auto at = [&](std::size_t i) {
      return static_cast<double>(widen(static_cast<bfloat16>(logits[t * vocab + i])));
    };
    double sum = 0.0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(at(i));
    loss += std::log(sum) - at(static_cast<std::size_t>(labels[t]));
  }
  return loss;
}

// Logits and gradients are rounded once, nothing in between: a row of 2051 entries ends inside a word. On devices another
// order of the product's sums may round a logit to its neighbour.
TEST(Bfloat16, LossRoundsItsLogitsAndTheirGradientOnce) {
  for (const std::int64_t vocab : {5, 1024, 2051}) {
    Runtime runtime;
    const std::int64_t tokens = 11, width = 13;
    const double scale = 0.125;
    ParameterSet<bfloat16> half_set;
    ParameterSet<double> set;
    const Parameter<bfloat16> half_weight{&half_set, half_set.declare("w", Shape{vocab, width}, true, {})};
    const Parameter<double> weight{&set, set.declare("w", Shape{vocab, width}, true, {})};
    half_set.allocate(runtime);
    set.allocate(runtime);
    randomise(runtime, half_set, 5, 0.5);
    copy_parameters(runtime, half_set, set);
    const LinearCrossEntropy<bfloat16> half_loss(half_weight, 4);
    const LinearCrossEntropy<double> loss(weight, 4);
    const Pair hidden = random_pair(runtime, {tokens, width}, 2);
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < tokens; ++t)
      ids.push_back(t % 5 == 3 ? ignored_label : static_cast<std::int32_t>(t * 7919 % vocab));
    const auto labels = from_vector(runtime.compute(), runtime.arena(), "labels", Shape{tokens}, ids);
    SavedTensors saved;
    Context context{runtime, saved};
    const auto half_sum = runtime.allocate_zero<double>("loss", Shape{1});
    const auto sum = runtime.allocate_zero<double>("loss", Shape{1});
    Tensor<bfloat16> half_d;
    Tensor<double> d;
    half_loss.forward_backward(context, hidden.half, labels, scale, half_sum, half_d);
    loss.forward_backward(context, hidden.exact, labels, scale, sum, d);
    const double want = loss_of_rounded(host(runtime, half_loss.logits(runtime, hidden.half)), ids);
    EXPECT_NEAR(host(runtime, half_sum)[0], want, (runs_on_host ? 1e-6 : 1e-4) * want) << vocab;
    EXPECT_NEAR(want, host(runtime, sum)[0], 1e-3 * want) << vocab;
    Context evaluation{runtime, saved, Mode::evaluate};
    const auto again = runtime.allocate_zero<double>("loss", Shape{1});
    half_loss.evaluate(evaluation, hidden.half, labels, again);
    EXPECT_EQ(host(runtime, again)[0], host(runtime, half_sum)[0]);

    // Each (softmax - onehot) scale is off by half a unit of itself, at most `scale` 2 in absolute value over
    // a row.
    const auto h = host(runtime, hidden.exact), w = host(runtime, weight.value()), dh = host(runtime, d);
    const double top_w = largest(w), top_h = largest(h);
    expect_within("d_hidden", host(runtime, half_d), dh, [&](std::size_t i) {
      return 1.01 * half_unit * (2.0 * scale * top_w + std::abs(dh[i])) + 1e-6;
    });
    const auto dw = host(runtime, weight.gradient());
    expect_within("d_weight", host(runtime, half_weight.gradient()), dw, [&](std::size_t) {
      return 1.01 * half_unit * scale * top_h * static_cast<double>(tokens) * 0.5;
    });
    for (std::size_t t = 3; t < static_cast<std::size_t>(tokens); t += 5)  // ignored rows
      for (std::size_t c = 0; c < static_cast<std::size_t>(width); ++c)
        EXPECT_EQ(widen(host(runtime, half_d)[t * static_cast<std::size_t>(width) + c]), 0.0f);
  }
}

TEST(Bfloat16, LogitsAreFloat32) {
  Runtime runtime;
  ParameterSet<bfloat16> set;
  const Parameter<bfloat16> weight{&set, set.declare("w", Shape{9, 70}, true, {})};
  set.allocate(runtime);
  randomise(runtime, set, 1, 1.0);
  const auto x = random_tensor<bfloat16>(runtime, {3, 70}, 2);
  const auto got = host(runtime, LinearCrossEntropy<bfloat16>(weight, 4).logits(runtime, x));
  const auto h = widened(host(runtime, x)), w = widened(host(runtime, weight.value()));
  std::vector<double> want(27, 0.0);
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t v = 0; v < 9; ++v)
      for (std::size_t c = 0; c < 70; ++c) want[r * 9 + v] += h[r * 70 + c] * w[v * 70 + c];
  expect_unrounded("logits", got, want, 1e-6);
}

// gate, up, their product and the output are each rounded: four independent errors of at most half a unit,
// whose squares add up to (2 half units)^2 in the norm. Backward has the same number of places.
TEST(Bfloat16, MlpStaysWithinItsRoundings) {
  Runtime runtime;
  ModelConfig config;
  config.hidden_size = 40;
  config.intermediate_size = 72;
  ParameterSet<bfloat16> half_set;
  ParameterSet<double> set;
  const Mlp<bfloat16> half_layer(half_set, "mlp", config);
  const Mlp<double> layer(set, "mlp", config);
  half_set.allocate(runtime);
  set.allocate(runtime);
  randomise(runtime, half_set, 3, 0.2);
  copy_parameters(runtime, half_set, set);
  const Pair x = random_pair(runtime, {90, 40}, 1), dy = random_pair(runtime, {90, 40}, 2);
  SavedTensors half_saved, saved;
  Context half_context{runtime, half_saved}, context{runtime, saved};
  EXPECT_LE(norm_error(host(runtime, half_layer.forward(half_context, x.half)),
                       host(runtime, layer.forward(context, x.exact))),
            2 * half_unit);
  EXPECT_LE(norm_error(host(runtime, half_layer.backward(half_context, dy.half)),
                       host(runtime, layer.backward(context, dy.exact))),
            2 * half_unit);
  for (int i = 0; i < 3; ++i)
    EXPECT_LE(norm_error(host(runtime, half_set.gradient(i)), host(runtime, set.gradient(i))), 2 * half_unit);
}

}  // namespace
}  // namespace deltaport
