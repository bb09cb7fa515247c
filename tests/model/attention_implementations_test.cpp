// SPDX-License-Identifier: Apache-2.0
// Every implementation of attention's core that this build has, against its definition.
#include <map>

#include "deltaport/model/attention_mixer.hpp"
#include "model/attention_core.hpp"
#include "model/bfloat16.hpp"
#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

struct Case {
  const char* name;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t row_tokens, heads, kv_heads, head_dim;
  std::int64_t gap = 0;  ///< elements between the rows of v
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

/// Results of forward and backward as host values; rows are tokens, those of dv without the gap.
struct Core {
  std::vector<double> o, logsumexp, dq, dk, dv;
};

/// Inputs, and what the definition makes of them in double.
struct Problem {
  Case c;
  std::int64_t tokens, value_stride;
  double scale;
  std::vector<bfloat16> q, k, v, d_o;

  explicit Problem(const Case& sizes)
      : c(sizes),
        tokens(c.cu_seqlens.back()),
        value_stride(c.kv_heads * c.head_dim + c.gap),
        scale(1.0 / std::sqrt(static_cast<double>(c.head_dim))),
        q(random_values<bfloat16>(tokens * c.heads * c.head_dim, 1)),
        k(random_values<bfloat16>(tokens * c.kv_heads * c.head_dim, 2)),
        v(random_values<bfloat16>(tokens * value_stride, 3)),
        d_o(random_values<bfloat16>(tokens * c.heads * c.head_dim, 4)) {}

  Core expected() const {
    const auto queries = static_cast<std::size_t>(tokens * c.heads * c.head_dim),
               keys = static_cast<std::size_t>(tokens * c.kv_heads * c.head_dim);
    Core r{std::vector<double>(queries), std::vector<double>(static_cast<std::size_t>(tokens * c.heads)),
           std::vector<double>(queries), std::vector<double>(keys), std::vector<double>(keys)};
    for (std::size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n)
      for (std::int64_t h = 0; h < c.heads; ++h)
        for (std::int64_t t = c.cu_seqlens[n]; t < c.cu_seqlens[n + 1]; ++t) query(r, h, t, c.cu_seqlens[n]);
    return r;
  }

  /// One query head of token t of a document that begins at `first`.
  void query(Core& r, std::int64_t h, std::int64_t t, std::int64_t first) const {
    const std::int64_t hd = c.head_dim, g = h / (c.heads / c.kv_heads);
    const auto at = static_cast<std::size_t>((t * c.heads + h) * hd);
    std::vector<double> p, dp;
    double sum = 0.0, delta = 0.0;
    for (std::int64_t s = first; s <= t; ++s) {
      double score = 0.0, product = 0.0;
      for (std::int64_t i = 0; i < hd; ++i) {
        score += element(q, at, i) * element(k, key(s, g), i);
        product += element(d_o, at, i) * element(v, value(s, g), i);
      }
      p.push_back(std::exp(score * scale));
      dp.push_back(product);
      sum += p.back();
    }
    for (std::size_t j = 0; j < p.size(); ++j) delta += (p[j] /= sum) * dp[j];
    r.logsumexp[static_cast<std::size_t>(h * tokens + t)] = std::log(sum);
    for (std::size_t j = 0; j < p.size(); ++j) {
      const std::int64_t s = first + static_cast<std::int64_t>(j);
      const double ds = p[j] * (dp[j] - delta) * scale;
      for (std::int64_t i = 0; i < hd; ++i) {
        const auto to = static_cast<std::size_t>(i);
        r.o[at + to] += p[j] * element(v, value(s, g), i);
        r.dq[at + to] += ds * element(k, key(s, g), i);
        r.dk[key(s, g) + to] += ds * element(q, at, i);
        r.dv[key(s, g) + to] += p[j] * element(d_o, at, i);
      }
    }
  }

  template <class T>
  Core run(Runtime& runtime, AttentionImplementation implementation) const {
    const auto up = [&](const std::vector<bfloat16>& values) {
      std::vector<T> as;
      for (const bfloat16 x : values) as.push_back(static_cast<T>(widen(x)));
      return from_vector(runtime.compute(), runtime.arena(), "values",
                         Shape{static_cast<std::int64_t>(as.size())}, as);
    };
    const auto qs = up(q), ks = up(k), vs = up(v), dos = up(d_o);
    const auto o = runtime.allocate<T>("o", qs.shape()), dv = runtime.allocate_zero<T>("dv", vs.shape());
    const auto lse = runtime.allocate<Accumulate<T>>("lse", Shape{c.heads, tokens});
    Sequences sequences = make_sequences(runtime, c.cu_seqlens, tokens);
    sequences.row_tokens = c.row_tokens;
    const AttentionShape shape{tokens, c.heads, c.kv_heads, c.head_dim, value_stride, scale};
    AttentionCore<T> core(implementation);
    core.forward(runtime, shape, sequences, qs.data(), ks.data(), vs.data(), o.data(), lse.data());
    const auto delta = from_vector(runtime.compute(), runtime.arena(), "delta", Shape{c.heads, tokens},
                                   sums<T>(host(runtime, o)));
    const auto d = core.backward(runtime, shape, sequences, qs.data(), ks.data(), vs.data(), o.data(),
                                 lse.data(), delta.data(), dos.data(), dv.data());
    const bool rounded = d.rounded_q.defined();
    Core r;
    r.o = widened(host(runtime, o));
    r.logsumexp = widened(host(runtime, lse));
    r.dq = rounded ? widened(host(runtime, d.rounded_q)) : widened(host(runtime, d.q));
    r.dk = rounded ? widened(host(runtime, d.rounded_k)) : widened(host(runtime, d.k));
    const auto all = host(runtime, dv);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < value_stride; ++i) {
        const double x = static_cast<double>(widen(all[static_cast<std::size_t>(t * value_stride + i)]));
        if (i < c.kv_heads * c.head_dim)
          r.dv.push_back(x);
        else
          EXPECT_EQ(x, 0.0) << "written between the rows of dv";
      }
    return r;
  }

 private:
  template <class T>
  std::vector<Accumulate<T>> sums(const std::vector<T>& o) const {
    std::vector<Accumulate<T>> delta(static_cast<std::size_t>(tokens * c.heads));
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t h = 0; h < c.heads; ++h)
        for (std::int64_t i = 0; i < c.head_dim; ++i) {
          const auto at = static_cast<std::size_t>((t * c.heads + h) * c.head_dim + i);
          delta[static_cast<std::size_t>(h * tokens + t)] +=
              widen(o[at]) * static_cast<Accumulate<T>>(widen(d_o[at]));
        }
    return delta;
  }
  static double element(const std::vector<bfloat16>& x, std::size_t begin, std::int64_t i) {
    return static_cast<double>(widen(x[begin + static_cast<std::size_t>(i)]));
  }
  std::size_t key(std::int64_t t, std::int64_t g) const {
    return static_cast<std::size_t>((t * c.kv_heads + g) * c.head_dim);
  }
  std::size_t value(std::int64_t t, std::int64_t g) const {
    return static_cast<std::size_t>(t * value_stride + g * c.head_dim);
  }
};

using Param = std::tuple<AttentionImplementation, Case>;
class AttentionImplementations : public ::testing::TestWithParam<Param> {};

TEST_P(AttentionImplementations, follow_the_definition_in_bfloat16) {
  const auto& [implementation, sizes] = GetParam();
  Runtime runtime;
  const Problem problem(sizes);
  const Core want = problem.expected(), got = problem.run<bfloat16>(runtime, implementation);
  const double room = 4 * half_unit;  // of operands inside, of results, and of sums by query head
  EXPECT_LE(relative_error(got.o, want.o), room);
  EXPECT_LE(relative_error(got.logsumexp, want.logsumexp), 1e-5);
  EXPECT_LE(relative_error(got.dq, want.dq), room);
  EXPECT_LE(relative_error(got.dk, want.dk), room);
  EXPECT_LE(relative_error(got.dv, want.dv), room);
}

TEST_P(AttentionImplementations, repeat_themselves_to_the_last_bit) {
  const auto& [implementation, sizes] = GetParam();
  Runtime runtime;
  const Problem problem(sizes);
  const Core first = problem.run<bfloat16>(runtime, implementation);
  for (int i = 0; i < 3; ++i) {
    const Core again = problem.run<bfloat16>(runtime, implementation);
    EXPECT_TRUE(same_bits(first.o, again.o) && same_bits(first.logsumexp, again.logsumexp));
    EXPECT_TRUE(same_bits(first.dq, again.dq) && same_bits(first.dk, again.dk) &&
                same_bits(first.dv, again.dv));
  }
}

std::vector<AttentionImplementation> built_implementations() {
  std::vector<AttentionImplementation> all = {AttentionImplementation::automatic};
  for (const auto implementation : {AttentionImplementation::portable, AttentionImplementation::cudnn})
    if (available(implementation)) all.push_back(implementation);
  return all;
}

const std::vector<std::int32_t> packed = {0, 100, 101, 101, 200, 256};
INSTANTIATE_TEST_SUITE_P(
    All, AttentionImplementations,
    ::testing::Combine(::testing::ValuesIn(built_implementations()),
                       ::testing::Values(Case{"one_document", {0, 256}, 256, 4, 2, 64},
                                         Case{"packed", packed, 0, 4, 2, 64},
                                         Case{"two_rows", {0, 128, 256}, 128, 2, 1, 128},
                                         Case{"two_packed_rows", {0, 28, 128, 256, 256}, 128, 2, 2, 64},
                                         Case{"odd_length", {0, 77}, 0, 2, 1, 96},
                                         Case{"wide_heads", {0, 60, 128}, 128, 4, 1, 256, 512})),
    [](const ::testing::TestParamInfo<Param>& test) {
      return std::string(name_of(std::get<0>(test.param))) + "_" + std::get<1>(test.param).name;
    });

TEST(AttentionImplementation, is_refused_where_it_cannot_do_the_call) {
  Runtime runtime;
  const Problem problem({"small", {0, 8}, 0, 2, 1, 16});
  EXPECT_THROW(problem.run<float>(runtime, AttentionImplementation::cudnn), ShapeError);
  try {
    problem.run<double>(runtime, AttentionImplementation::cudnn);
    FAIL();
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("float64"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("portable"), std::string::npos) << e.what();
  }
  if (available(AttentionImplementation::cudnn)) return;
  EXPECT_THROW(problem.run<bfloat16>(runtime, AttentionImplementation::cudnn), ShapeError);
}

TEST(AttentionImplementation, automatic_does_types_and_sizes_that_no_engine_does) {
  Runtime runtime;
  const Problem problem({"small", {0, 3, 8}, 0, 2, 1, 12});
  const Core want = problem.expected(), got = problem.run<float>(runtime, AttentionImplementation::automatic);
  EXPECT_LE(relative_error(got.o, want.o), 1e-5);
  EXPECT_LE(relative_error(got.dk, want.dk), 1e-5);
}

}  // namespace
}  // namespace deltaport
