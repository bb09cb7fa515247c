// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/attention_mixer.hpp"

#include "model/attention_oracle.hpp"
#include "model/gradient_check.hpp"

namespace deltaport {
namespace {
using namespace testing;

ModelConfig small(std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                  double rotary = 0.25) {
  ModelConfig config;
  config.hidden_size = hidden;
  config.attention = {heads, kv_heads, head_dim, rotary, 1e4};
  return config;
}

template <class T>
struct Fixture {
  explicit Fixture(const ModelConfig& c) : config(c), mixer(parameters, "attn", c) {
    parameters.allocate(runtime);
    randomise(runtime, parameters, 5, 0.4);
  }
  Sequences sequences(const std::vector<std::int32_t>& cu) { return make_sequences(runtime, cu, cu.back()); }
  AttentionOracle oracle() {
    std::vector<std::vector<double>> values;
    for (int i = 0; i < 6; ++i) {
      const auto value = host(runtime, parameters.value(i));
      values.emplace_back(value.begin(), value.end());
    }
    return {config, values};
  }
  ModelConfig config;
  Runtime runtime;
  ParameterSet<T> parameters;
  AttentionMixer<T> mixer;
};

TEST(AttentionMixer, declares_the_names_and_shapes_of_hugging_face) {
  Fixture<float> f(small(8, 4, 2, 16));
  const auto& infos = f.parameters.infos();
  ASSERT_EQ(infos.size(), 6u);
  EXPECT_EQ(infos[0].name, "attn.q_proj.weight");
  EXPECT_EQ(infos[0].shape, (Shape{128, 8}));
  EXPECT_EQ(infos[1].name, "attn.k_proj.weight");
  EXPECT_EQ(infos[2].name, "attn.v_proj.weight");
  EXPECT_EQ(infos[2].shape, (Shape{32, 8}));
  EXPECT_EQ(infos[2].offset, infos[0].offset + (128 + 32) * 8);
  EXPECT_EQ(infos[3].name, "attn.o_proj.weight");
  EXPECT_EQ(infos[3].shape, (Shape{8, 64}));
  EXPECT_EQ(infos[4].name, "attn.q_norm.weight");
  EXPECT_EQ(infos[5].shape, (Shape{16}));
}

TEST(AttentionMixer, follows_the_formula_in_every_document) {
  Fixture<double> f(small(5, 4, 2, 12, 0.5));
  for (const std::vector<std::int32_t>& cu :
       {std::vector<std::int32_t>{0, 1}, {0, 65}, {0, 1, 1, 3, 66, 130}, {0, 33, 97, 161}}) {
    const auto x = random_values<double>(cu.back() * 5, 2);
    SavedTensors saved;
    Context context{f.runtime, saved, Mode::evaluate};
    const auto y =
        host(f.runtime,
             f.mixer.forward(context,
                             from_vector(f.runtime.compute(), f.runtime.arena(), "x", Shape{cu.back(), 5}, x),
                             f.sequences(cu)));
    EXPECT_TRUE(saved.empty());
    for (std::size_t n = 0; n + 1 < cu.size(); ++n) {
      const auto cut = [&](const std::vector<double>& a) {
        return std::vector<double>(a.begin() + cu[n] * 5, a.begin() + cu[n + 1] * 5);
      };
      if (cu[n] == cu[n + 1]) continue;
      EXPECT_LE(relative_error(cut(y), f.oracle().run(cut(x))), 1e-12) << n;
    }
  }
}

TEST(AttentionMixer, gradients_match_central_differences) {
  struct Case {
    ModelConfig config;
    std::vector<std::int32_t> cu;
  };
  for (const Case& c : {Case{small(4, 2, 1, 32), {0, 1}}, Case{small(3, 2, 2, 4, 0.5), {0, 67}},
                        Case{small(5, 4, 2, 8, 1.0), {0, 3, 70}}, Case{small(3, 1, 1, 64), {0, 5, 5, 9}},
                        Case{small(2, 3, 1, 2, 0.0), {0, 64, 65}}, Case{small(2, 2, 1, 256), {0, 4}}}) {
    Fixture<double> f(c.config);
    const Sequences sequences = f.sequences(c.cu);
    GradientCase layer;
    layer.inputs = {{"x", random_tensor<double>(f.runtime, {c.cu.back(), c.config.hidden_size}, 1)}};
    layer.parameters = &f.parameters;
    layer.forward = [&](Context& k) { return f.mixer.forward(k, layer.inputs[0].value, sequences); };
    layer.backward = [&](Context& k, const Tensor<double>& dy) {
      return std::vector<Tensor<double>>{f.mixer.backward(k, dy, sequences)};
    };
    check_gradients(f.runtime, layer, {.max_entries = 6});
  }
}

TEST(AttentionMixer, float32_is_close_to_float64_and_gradients_accumulate) {
  const ModelConfig config = small(24, 4, 2, 32);
  Fixture<float> f(config);
  Fixture<double> d(config);
  SavedTensors saved;
  Context fc{f.runtime, saved, Mode::train};
  Context dc{d.runtime, saved, Mode::train};
  const std::vector<std::int32_t> cu = {0, 40, 200};
  const Sequences fs = f.sequences(cu), ds = d.sequences(cu);
  std::vector<float> first;
  for (int call = 0; call < 2; ++call) {
    const auto y = f.mixer.forward(fc, random_tensor<float>(f.runtime, {200, 24}, 1), fs);
    const auto dx = f.mixer.backward(fc, random_tensor<float>(f.runtime, {200, 24}, 2), fs);
    const auto yd = d.mixer.forward(dc, random_tensor<double>(d.runtime, {200, 24}, 1), ds);
    const auto dxd = d.mixer.backward(dc, random_tensor<double>(d.runtime, {200, 24}, 2), ds);
    EXPECT_LE(relative_error(host(f.runtime, y), host(d.runtime, yd)), 1e-5);
    EXPECT_LE(relative_error(host(f.runtime, dx), host(d.runtime, dxd)), 1e-5);
    if (call == 0) first = host(f.runtime, f.parameters.flat_gradients());
  }
  const auto twice = host(f.runtime, f.parameters.flat_gradients());
  for (float& g : first) g *= 2.0f;
  EXPECT_LE(relative_error(twice, first), 1e-6);
  EXPECT_LE(relative_error(twice, host(d.runtime, d.parameters.flat_gradients())), 1e-5);
}

TEST(AttentionMixer, later_tokens_and_other_documents_change_nothing) {
  Fixture<float> f(small(6, 2, 1, 16));
  const std::vector<std::int32_t> cu = {0, 64, 130, 131};
  const Sequences sequences = f.sequences(cu);
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::evaluate};
  auto x = random_values<float>(131 * 6, 1);
  const auto run = [&] {
    return host(
        f.runtime,
        f.mixer.forward(context, from_vector(f.runtime.compute(), f.runtime.arena(), "x", Shape{131, 6}, x),
                        sequences));
  };
  const auto before = run();
  for (int token : {0, 62, 63, 64, 100, 129, 130}) {
    const auto original = x;
    for (int i = 0; i < 6; ++i) x[static_cast<std::size_t>(token * 6 + i)] += 1.0f;
    const auto after = run();
    const int end = token < 64 ? 64 : token < 130 ? 130 : 131;
    for (int t = 0; t < 131; ++t) {
      bool same = true;
      for (int i = 0; i < 6; ++i)
        same =
            same && after[static_cast<std::size_t>(t * 6 + i)] == before[static_cast<std::size_t>(t * 6 + i)];
      EXPECT_EQ(same, t < token || t >= end) << "token " << t << " after a change of token " << token;
    }
    x = original;
  }
}

TEST(AttentionMixer, single_steps_equal_the_whole_sequence) {
  Fixture<double> f(small(6, 4, 2, 16, 0.5));
  const std::int64_t tokens = 70, count = 3;
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::evaluate};
  const auto x = random_values<double>(count * tokens * 6, 1);
  const auto all = host(
      f.runtime,
      f.mixer.forward(context, from_vector(f.runtime.compute(), f.runtime.arena(), "x", Shape{210, 6}, x),
                      f.sequences({0, 70, 140, 210})));
  auto state = f.mixer.make_state(f.runtime, count, tokens);
  std::vector<double> stepped(all.size());
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> now;
    for (std::int64_t n = 0; n < count; ++n)
      now.insert(now.end(), x.begin() + (n * tokens + t) * 6, x.begin() + (n * tokens + t + 1) * 6);
    const auto y = host(
        f.runtime,
        f.mixer.step(f.runtime,
                     from_vector(f.runtime.compute(), f.runtime.arena(), "x", Shape{count, 6}, now), state));
    for (std::int64_t n = 0; n < count; ++n)
      std::copy(y.begin() + n * 6, y.begin() + (n + 1) * 6, stepped.begin() + (n * tokens + t) * 6);
  }
  EXPECT_LE(relative_error(stepped, all), 1e-12);
  EXPECT_EQ(state.seen, std::vector<std::int64_t>(3, tokens));
  EXPECT_EQ(host(f.runtime, state.lengths), std::vector<std::int32_t>(3, 70));
  EXPECT_THROW(f.mixer.step(f.runtime, random_tensor<double>(f.runtime, {count, 6}, 1), state), ShapeError);
}

// Runs of several sequences, some empty, begin and end inside of tiles, behind other lengths each.
TEST(AttentionMixer, prefill_equals_the_whole_sequence) {
  Fixture<double> f(small(6, 4, 2, 16, 0.5));
  const std::vector<std::int32_t> whole = {0, 150, 151, 281};
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::evaluate};
  const auto x = random_values<double>(281 * 6, 1);
  const auto all = host(
      f.runtime,
      f.mixer.forward(context, from_vector(f.runtime.compute(), f.runtime.arena(), "x", Shape{281, 6}, x),
                      f.sequences(whole)));
  auto state = f.mixer.make_state(f.runtime, 3, 150);
  std::vector<double> parts(all.size());
  std::vector<std::int32_t> seen(3, 0);
  struct Run {
    std::int64_t first;
    std::vector<std::int32_t> lengths;
  };
  for (const Run& run : {Run{0, {10}}, Run{0, {70, 0, 1}}, Run{1, {1, 99}}, Run{0, {70, 0, 30}}}) {
    std::vector<std::int32_t> cu = {0};
    std::vector<double> now;
    for (std::size_t m = 0; m < run.lengths.size(); ++m) {
      const std::size_t n = static_cast<std::size_t>(run.first) + m;
      const auto from = x.begin() + (whole[n] + seen[n]) * 6;
      now.insert(now.end(), from, from + run.lengths[m] * 6);
      cu.push_back(cu.back() + run.lengths[m]);
    }
    const auto y = host(f.runtime, f.mixer.prefill(f.runtime,
                                                   from_vector(f.runtime.compute(), f.runtime.arena(), "x",
                                                               Shape{cu.back(), 6}, now),
                                                   make_continuation(f.runtime, cu, run.first), state));
    for (std::size_t m = 0; m < run.lengths.size(); ++m) {
      const std::size_t n = static_cast<std::size_t>(run.first) + m;
      std::copy(y.begin() + cu[m] * 6, y.begin() + cu[m + 1] * 6, parts.begin() + (whole[n] + seen[n]) * 6);
      seen[n] += run.lengths[m];
    }
  }
  EXPECT_LE(relative_error(parts, all), 1e-12);
  EXPECT_EQ(host(f.runtime, state.lengths), (std::vector<std::int32_t>{150, 1, 130}));
  const auto one = random_tensor<double>(f.runtime, {1, 6}, 1);
  EXPECT_THROW(f.mixer.prefill(f.runtime, one, make_continuation(f.runtime, {0, 1}, 0), state), ShapeError);
  EXPECT_THROW(f.mixer.prefill(f.runtime, one, make_continuation(f.runtime, {0, 1}, 3), state), ShapeError);
  EXPECT_THROW(f.mixer.prefill(f.runtime, one, make_continuation(f.runtime, {0, 2}, 1), state), ShapeError);
}

TEST(AttentionMixer, rejects_wrong_shapes_and_configurations) {
  Fixture<float> f(small(6, 2, 1, 16));
  SavedTensors saved;
  Context context{f.runtime, saved, Mode::train};
  const Sequences sequences = f.sequences({0, 4});
  EXPECT_THROW(f.mixer.forward(context, random_tensor<float>(f.runtime, {4, 7}, 1), sequences), ShapeError);
  EXPECT_THROW(f.mixer.forward(context, random_tensor<float>(f.runtime, {5, 6}, 1), sequences), ShapeError);
  f.mixer.forward(context, random_tensor<float>(f.runtime, {4, 6}, 1), sequences);
  EXPECT_GT(saved.bytes("attn_core"), 0u);
  EXPECT_THROW(f.mixer.backward(context, random_tensor<float>(f.runtime, {3, 6}, 1), sequences), ShapeError);
  auto state = f.mixer.make_state(f.runtime, 2, 4);
  EXPECT_THROW(f.mixer.step(f.runtime, random_tensor<float>(f.runtime, {3, 6}, 1), state), ShapeError);
  ParameterSet<float> other;
  EXPECT_THROW(AttentionMixer<float>(other, "a", small(6, 3, 2, 16)), ConfigError);
  EXPECT_THROW(AttentionMixer<float>(other, "b", small(6, 2, 2, 6)),
               ConfigError);  // rotated width 1.5 -> 2 is fine
}

}  // namespace
}  // namespace deltaport
