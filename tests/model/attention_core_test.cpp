// SPDX-License-Identifier: Apache-2.0
#include "model/attention_core.hpp"

#include "model/attention_project.hpp"
#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

/// Results of forward and backward as host values; rows are tokens.
template <class T>
struct Result {
  std::vector<T> o, dq, dk, dv;
};

/// Inputs of `tokens` tokens; standalone runs get slices of the same values.
template <class T>
struct Inputs {
  std::int64_t tokens, heads = 4, kv_heads = 2, head_dim;
  std::vector<T> q, k, v, d_o;
  Inputs(std::int64_t t, std::int64_t hd)
      : tokens(t),
        head_dim(hd),
        q(random_values<T>(t * heads * hd, 1)),
        k(random_values<T>(t * kv_heads * hd, 2)),
        v(random_values<T>(t * kv_heads * hd, 3)),
        d_o(random_values<T>(t * heads * hd, 4)) {}

  Result<T> run(Runtime& runtime, std::int64_t begin, const std::vector<std::int32_t>& cu) const {
    const std::int64_t count = cu.back();
    const auto piece = [&](const std::vector<T>& all, std::int64_t h) {
      const std::int64_t row = h * head_dim;
      return from_vector(runtime.compute(), runtime.arena(), "piece", Shape{count, row},
                         std::vector<T>(all.begin() + begin * row, all.begin() + (begin + count) * row));
    };
    const auto qt = piece(q, heads), kt = piece(k, kv_heads), vt = piece(v, kv_heads),
               dot = piece(d_o, heads);
    const auto o = runtime.allocate<T>("o", qt.shape()), dq = runtime.allocate<T>("dq", qt.shape());
    const auto dk = runtime.allocate<T>("dk", kt.shape()), dv = runtime.allocate<T>("dv", kt.shape());
    const auto lse = runtime.allocate<T>("lse", Shape{heads, count});
    const Sequences sequences = make_sequences(runtime, cu, count);
    const AttentionShape shape{count, heads, kv_heads, head_dim, kv_heads * head_dim, 0.3};
    attention_forward<T>(runtime, shape, sequences, qt.data(), kt.data(), vt.data(), o.data(), lse.data());
    const auto oh = host(runtime, o), doh = host(runtime, dot);
    std::vector<T> delta(static_cast<std::size_t>(heads * count), T(0));
    for (std::int64_t t = 0; t < count; ++t)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < head_dim; ++i) {
          const auto at = static_cast<std::size_t>((t * heads + h) * head_dim + i);
          delta[static_cast<std::size_t>(h * count + t)] += oh[at] * doh[at];
        }
    const auto dt = from_vector(runtime.compute(), runtime.arena(), "delta", Shape{heads, count}, delta);
    attention_backward<T>(runtime, shape, sequences, qt.data(), kt.data(), vt.data(), lse.data(), dt.data(),
                          dot.data(), dq.data(), dk.data(), dv.data());
    return {oh, host(runtime, dq), host(runtime, dk), host(runtime, dv)};
  }
};

template <class T>
std::vector<T> cut(const std::vector<T>& all, std::int64_t tokens, std::int64_t begin, std::int64_t end) {
  const std::int64_t row = static_cast<std::int64_t>(all.size()) / tokens;
  return {all.begin() + begin * row, all.begin() + end * row};
}

template <class T>
void packed_equals_alone(const std::vector<std::int32_t>& cu, std::int64_t head_dim) {
  Runtime runtime;
  const std::int64_t tokens = cu.back();
  const Inputs<T> inputs(tokens, head_dim);
  const Result<T> packed = inputs.run(runtime, 0, cu);
  for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
    if (cu[n] == cu[n + 1]) continue;
    const Result<T> alone = inputs.run(runtime, cu[n], {0, cu[n + 1] - cu[n]});
    EXPECT_TRUE(same_bits(cut(packed.o, tokens, cu[n], cu[n + 1]), alone.o)) << n;
    EXPECT_TRUE(same_bits(cut(packed.dq, tokens, cu[n], cu[n + 1]), alone.dq)) << n;
    EXPECT_TRUE(same_bits(cut(packed.dk, tokens, cu[n], cu[n + 1]), alone.dk)) << n;
    EXPECT_TRUE(same_bits(cut(packed.dv, tokens, cu[n], cu[n + 1]), alone.dv)) << n;
  }
}

TEST(AttentionCore, packed_documents_equal_standalone_ones_to_the_last_bit) {
  const std::vector<std::int32_t> cu = {0, 1, 2, 65, 65, 129, 194, 322, 323, 473};
  for (std::int64_t head_dim : {8, 33, 64}) {
    packed_equals_alone<float>(cu, head_dim);
    packed_equals_alone<double>(cu, head_dim);
  }
}

TEST(AttentionCore, repeats_itself_to_the_last_bit) {
  Runtime runtime;
  const Inputs<float> inputs(300, 64);
  const auto a = inputs.run(runtime, 0, {0, 100, 300}), b = inputs.run(runtime, 0, {0, 100, 300});
  EXPECT_TRUE(same_bits(a.o, b.o) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) && same_bits(a.dv, b.dv));
}

TEST(AttentionCore, huge_scores_stay_finite) {
  Runtime runtime;
  Inputs<float> inputs(130, 16);
  for (float& value : inputs.q) value *= 300.0f;
  const auto result = inputs.run(runtime, 0, {0, 130});
  for (float value : result.o) ASSERT_TRUE(std::isfinite(value));
  for (float value : result.dk) ASSERT_TRUE(std::isfinite(value));
}

TEST(AttentionCore, memory_grows_with_tokens_and_not_with_their_square) {
  Runtime runtime;
  const std::int64_t tokens = 2048;
  const Inputs<float> inputs(tokens, 8);
  runtime.arena().reset_peak();
  const std::size_t before = runtime.arena().stats().allocated;
  inputs.run(runtime, 0, {0, static_cast<std::int32_t>(tokens)});
  // q, o, do, dq and k, v, dk, dv, logsumexp, delta and the sequences' tables: about 96 KiB per 256 tokens.
  EXPECT_LE(runtime.arena().stats().allocated_peak - before, std::size_t{2} << 20);
}

TEST(RotationTable, keeps_its_accuracy_at_large_positions) {
  Runtime runtime;
  const std::vector<std::int32_t> positions = {0, 1, 4095, 262143};
  const auto device = from_vector(runtime.compute(), runtime.arena(), "positions", Shape{4}, positions);
  const auto table = runtime.allocate<float>("table", Shape{4, 16});
  rotation_table<float>(runtime, 4, 16, 1e7, device.data(), 0, table.data());
  const auto got = host(runtime, table);
  for (std::size_t t = 0; t < 4; ++t)
    for (std::size_t i = 0; i < 8; ++i) {
      const double angle = positions[t] * std::pow(1e7, -static_cast<double>(i) / 8.0);
      EXPECT_NEAR(got[t * 16 + i], std::cos(angle), 1e-7);
      EXPECT_NEAR(got[t * 16 + 8 + i], std::sin(angle), 1e-7);
    }
}

}  // namespace
}  // namespace deltaport
