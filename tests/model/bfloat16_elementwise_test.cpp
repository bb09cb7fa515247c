// SPDX-License-Identifier: Apache-2.0
// Norms, gates, convolution and embedding in bfloat16. Inputs are the same numbers in both types, so that all
// differences come from rounding results (and what is kept in bfloat16 on the way).
#include "deltaport/model/embedding.hpp"
#include "deltaport/model/gated_norm.hpp"
#include "deltaport/model/gates.hpp"
#include "deltaport/model/qkv_conv.hpp"
#include "deltaport/model/rms_norm.hpp"
#include "model/bfloat16.hpp"

namespace deltaport {
namespace {
using namespace testing;

TEST(Bfloat16, EmbeddingCopiesRowsAndAddsGradientsInTokenOrder) {
  Runtime runtime;
  ParameterSet<bfloat16> parameters;
  ModelConfig config;
  config.vocab_size = 7;
  config.hidden_size = 37;
  Embedding<bfloat16> layer(parameters, "e", config);
  parameters.allocate(runtime);
  randomise(runtime, parameters, 1, 1.0);
  const std::vector<std::int32_t> ids = {3, 0, 3, 3, 6, 9, 3};
  const auto tokens = from_vector(runtime.compute(), runtime.arena(), "ids", Shape{7}, ids);
  SavedTensors saved;
  Context context{runtime, saved};
  const auto y = host(runtime, layer.forward(context, tokens));
  const auto dy = random_tensor<bfloat16>(runtime, {7, 37}, 2);
  layer.backward(context, dy);
  const auto table = host(runtime, layer.weight().value()), d = host(runtime, dy);
  std::vector<float> gradient(7 * 37, 0.0f);
  for (std::size_t t = 0; t < ids.size(); ++t)
    for (std::size_t i = 0; i < 37; ++i) {
      const auto id = static_cast<std::size_t>(ids[t]);
      if (id >= 7) {
        EXPECT_TRUE(std::isnan(widen(y[t * 37 + i])));
        continue;
      }
      EXPECT_EQ(y[t * 37 + i].bits, table[id * 37 + i].bits);
      gradient[id * 37 + i] += widen(d[t * 37 + i]);
    }
  EXPECT_EQ(host(runtime, layer.weight().gradient()), gradient);
}

TEST(Bfloat16, RmsNormRoundsEachResultOnce) {
  for (const std::int64_t size : {1, 33, 256}) {
    Runtime runtime;
    ParameterSet<bfloat16> half_set;
    ParameterSet<double> set;
    const RmsNorm<bfloat16> half_norm(half_set, "n", size, 1e-6);
    const RmsNorm<double> norm(set, "n", size, 1e-6);
    half_set.allocate(runtime);
    set.allocate(runtime);
    randomise(runtime, half_set, 3, 0.3);
    copy_parameters(runtime, half_set, set);
    const Shape shape{19, size};
    const Pair x = random_pair(runtime, shape, 1), delta = random_pair(runtime, shape, 2),
               dy = random_pair(runtime, shape, 4), d_residual = random_pair(runtime, shape, 5);
    SavedTensors half_saved, saved;
    Context half_context{runtime, half_saved}, context{runtime, saved};
    const auto got = half_norm.forward_residual(half_context, x.half, delta.half);
    const auto sums = host(runtime, got.sum);
    const auto xs = host(runtime, x.half), ds = host(runtime, delta.half);
    for (std::size_t i = 0; i < sums.size(); ++i)
      ASSERT_EQ(sums[i].bits, bfloat16(widen(xs[i]) + widen(ds[i])).bits);
    // From here on the double norm gets the residual stream as it was rounded.
    const auto want = norm.forward(context, in_double(runtime, got.sum));
    expect_rounded("y", host(runtime, got.normalised), host(runtime, want));
    const auto dx = half_norm.backward(half_context, dy.half, d_residual.half);
    const auto want_dx = norm.backward(context, dy.exact, d_residual.exact);
    expect_rounded("dx", host(runtime, dx), host(runtime, want_dx));
    expect_unrounded("dw", host(runtime, half_norm.weight().gradient()),
                     host(runtime, norm.weight().gradient()));
  }
}

TEST(Bfloat16, GatedNormKeepsItsWeightAndItsGradientInFloat32) {
  Runtime runtime;
  const std::int64_t tokens = 23, heads = 3, width = 48;
  const Shape flat{tokens, heads * width};
  const Pair x = random_pair(runtime, {tokens, heads, width}, 1), z = random_pair(runtime, flat, 2),
             dy = random_pair(runtime, flat, 3);
  const WidePair weight = random_wide_pair(runtime, {width}, 4);
  const ColumnSlice<bfloat16> half_z{z.half, 0, heads * width};
  const ColumnSlice<double> exact_z{z.exact, 0, heads * width};
  const auto got = gated_norm_forward(runtime, x.half, half_z, weight.single, 1e-6);
  const auto want = gated_norm_forward(runtime, x.exact, exact_z, weight.exact, 1e-6);
  expect_rounded("y", host(runtime, got.y), host(runtime, want.y));
  expect_unrounded("rstd", host(runtime, got.rstd), host(runtime, want.rstd));

  const auto half_dz = runtime.allocate<bfloat16>("dz", flat);
  const auto dz = runtime.allocate<double>("dz", flat);
  const auto half_dw = runtime.allocate_zero<float>("dw", {width});
  const auto dw = runtime.allocate_zero<double>("dw", {width});
  const auto got_d = gated_norm_backward(runtime, x.half, half_z, weight.single, got.rstd, dy.half,
                                         ColumnSlice<bfloat16>{half_dz, 0, heads * width}, half_dw);
  const auto want_d = gated_norm_backward(runtime, x.exact, exact_z, weight.exact, want.rstd, dy.exact,
                                          ColumnSlice<double>{dz, 0, heads * width}, dw);
  expect_rounded("dz", host(runtime, half_dz), host(runtime, dz));
  expect_rounded("y again", host(runtime, got_d.y), host(runtime, want.y));
  expect_unrounded("dw", host(runtime, half_dw), host(runtime, dw));
  // dx = (t - n mean(t n)) / rms(x) with t = w dy silu(z) kept in bfloat16: t's own rounding, and by
  // Cauchy-Schwarz |n| rms(t) of it through the mean (n has unit root mean square).
  const auto xs = host(runtime, x.exact), zs = host(runtime, z.exact), ds = host(runtime, dy.exact),
             ws = host(runtime, weight.exact), rstd = host(runtime, want.rstd), dx = host(runtime, want_d.dx);
  const auto t_of = [&](std::size_t i) {
    return std::abs(ws[i % static_cast<std::size_t>(width)] * ds[i] * zs[i] / (1.0 + std::exp(-zs[i])));
  };
  const auto w = static_cast<std::size_t>(width);
  expect_within("dx", host(runtime, got_d.dx), dx, [&](std::size_t i) {
    double squares = 0.0;
    for (std::size_t c = i / w * w; c < i / w * w + w; ++c) squares += t_of(c) * t_of(c);
    const double n = std::abs(xs[i]) * rstd[i / w];
    const double t_error = rstd[i / w] * (t_of(i) + n * std::sqrt(squares / static_cast<double>(width)));
    return 1.01 * half_unit * (std::abs(dx[i]) + t_error) + float_room * largest(dx);
  });
}

TEST(Bfloat16, GdnGatesAreFloat32) {
  Runtime runtime;
  const std::int64_t tokens = 130, heads = 5;
  const Shape shape{tokens, heads};
  const Pair b = random_pair(runtime, shape, 1), a = random_pair(runtime, shape, 2, 3.0);
  const WidePair a_log = random_wide_pair(runtime, {heads}, 3), bias = random_wide_pair(runtime, {heads}, 4),
                 dg = random_wide_pair(runtime, shape, 5), dbeta = random_wide_pair(runtime, shape, 6);
  const ColumnSlice<bfloat16> hb{b.half, 0, heads}, ha{a.half, 0, heads};
  const ColumnSlice<double> eb{b.exact, 0, heads}, ea{a.exact, 0, heads};
  const auto got = gdn_gates_forward(runtime, hb, ha, a_log.single, bias.single);
  const auto want = gdn_gates_forward(runtime, eb, ea, a_log.exact, bias.exact);
  expect_unrounded("g", host(runtime, got.g), host(runtime, want.g));
  expect_unrounded("beta", host(runtime, got.beta), host(runtime, want.beta));
  const auto half_db = runtime.allocate<bfloat16>("db", shape),
             half_da = runtime.allocate<bfloat16>("da", shape);
  const auto db = runtime.allocate<double>("db", shape), da = runtime.allocate<double>("da", shape);
  const auto half_dlog = runtime.allocate_zero<float>("dA_log", {heads}),
             half_dbias = runtime.allocate_zero<float>("ddt_bias", {heads});
  const auto dlog = runtime.allocate_zero<double>("dA_log", {heads}),
             dbias = runtime.allocate_zero<double>("ddt_bias", {heads});
  gdn_gates_backward(runtime, hb, ha, a_log.single, bias.single, dg.single, dbeta.single,
                     ColumnSlice<bfloat16>{half_db, 0, heads}, ColumnSlice<bfloat16>{half_da, 0, heads},
                     half_dlog, half_dbias);
  gdn_gates_backward(runtime, eb, ea, a_log.exact, bias.exact, dg.exact, dbeta.exact,
                     ColumnSlice<double>{db, 0, heads}, ColumnSlice<double>{da, 0, heads}, dlog, dbias);
  expect_rounded("db", host(runtime, half_db), host(runtime, db));
  expect_rounded("da", host(runtime, half_da), host(runtime, da));
  expect_unrounded("dA_log", host(runtime, half_dlog), host(runtime, dlog));
  expect_unrounded("ddt_bias", host(runtime, half_dbias), host(runtime, dbias));
}

TEST(Bfloat16, Gdn2GatesKeepTheDecayInFloat32) {
  Runtime runtime;
  const QkvShape shape{2, 4, 6, 10};
  const std::int64_t tokens = 70, keys = shape.keys(), values = shape.values();
  const Pair f = random_pair(runtime, {tokens, keys}, 1), b = random_pair(runtime, {tokens, keys}, 2),
             w = random_pair(runtime, {tokens, values}, 3);
  const WidePair a_log = random_wide_pair(runtime, {2}, 4), bias = random_wide_pair(runtime, {keys}, 5);
  const auto slice = [](const auto& x) {
    return ColumnSlice<typename std::decay_t<decltype(x)>::value_type>{x, 0, x.extent(1)};
  };
  const auto got = gdn2_gates_forward(runtime, shape, slice(f.half), slice(b.half), slice(w.half),
                                      a_log.single, bias.single);
  const auto want = gdn2_gates_forward(runtime, shape, slice(f.exact), slice(b.exact), slice(w.exact),
                                       a_log.exact, bias.exact);
  expect_unrounded("g", host(runtime, got.g), host(runtime, want.g));
  expect_rounded("b", host(runtime, got.b), host(runtime, want.b));
  expect_rounded("w", host(runtime, got.w), host(runtime, want.w));

  const WidePair dg = random_wide_pair(runtime, got.g.shape(), 6);
  const Pair db = random_pair(runtime, got.b.shape(), 7), dw = random_pair(runtime, got.w.shape(), 8);
  const auto outputs = [&]<class T>(T) {
    return std::vector<Tensor<T>>{runtime.allocate<T>("df", f.half.shape()),
                                  runtime.allocate<T>("db", b.half.shape()),
                                  runtime.allocate<T>("dw", w.half.shape())};
  };
  const auto half_out = outputs(bfloat16{});
  const auto out = outputs(double{});
  const auto half_dlog = runtime.allocate_zero<float>("dA_log", {2}),
             half_dbias = runtime.allocate_zero<float>("ddt_bias", {keys});
  const auto dlog = runtime.allocate_zero<double>("dA_log", {2}),
             dbias = runtime.allocate_zero<double>("ddt_bias", {keys});
  gdn2_gates_backward(runtime, shape, slice(f.half), got.b, got.w, a_log.single, bias.single,
                      {dg.single, db.half, dw.half}, slice(half_out[0]), slice(half_out[1]),
                      slice(half_out[2]), half_dlog, half_dbias);
  gdn2_gates_backward(runtime, shape, slice(f.exact), in_double(runtime, got.b), in_double(runtime, got.w),
                      a_log.exact, bias.exact, {dg.exact, db.exact, dw.exact}, slice(out[0]), slice(out[1]),
                      slice(out[2]), dlog, dbias);
  for (std::size_t i = 0; i < 3; ++i)
    expect_rounded(concat("gradient ", i), host(runtime, half_out[i]), host(runtime, out[i]));
  expect_unrounded("dA_log", host(runtime, half_dlog), host(runtime, dlog));
  expect_unrounded("ddt_bias", host(runtime, half_dbias), host(runtime, dbias));
}

TEST(Bfloat16, ConvolutionSumsTapsAndWeightGradientsInFloat32) {
  Runtime runtime;
  const QkvShape shape{2, 4, 24, 10};
  const std::int64_t tokens = 75;
  const Sequences seqs = make_sequences(runtime, {0, 1, 30, 75}, tokens);
  const Pair x = random_pair(runtime, {tokens, shape.channels()}, 1),
             weight = random_pair(runtime, {shape.channels(), 1, 4}, 2);
  const ColumnSlice<bfloat16> half_x{x.half, 0, shape.channels()};
  const ColumnSlice<double> exact_x{x.exact, 0, shape.channels()};
  const auto got = qkv_conv_forward(runtime, shape, half_x, weight.half, seqs.positions);
  const auto want = qkv_conv_forward(runtime, shape, exact_x, weight.exact, seqs.positions);
  expect_rounded("v", host(runtime, got.v), host(runtime, want.v));
  // q and k: the activation, its length and the quotient are each rounded, or made of rounded numbers.
  expect_rounded("q", host(runtime, got.q), host(runtime, want.q), 3);
  expect_rounded("k", host(runtime, got.k), host(runtime, want.k), 3);

  const Pair dq = random_pair(runtime, got.q.shape(), 3), dk = random_pair(runtime, got.k.shape(), 4),
             dv = random_pair(runtime, got.v.shape(), 5);
  const auto half_dx = runtime.allocate<bfloat16>("dx", x.half.shape());
  const auto dx = runtime.allocate<double>("dx", x.half.shape());
  const auto half_dw = runtime.allocate_zero<float>("dw", weight.half.shape());
  const auto dw = runtime.allocate_zero<double>("dw", weight.half.shape());
  qkv_conv_backward(runtime, shape, half_x, weight.half, seqs.positions, got.rstd, dq.half, dk.half, dv.half,
                    ColumnSlice<bfloat16>{half_dx, 0, shape.channels()}, half_dw);
  qkv_conv_backward(runtime, shape, exact_x, weight.exact, seqs.positions, in_double(runtime, got.rstd),
                    dq.exact, dk.exact, dv.exact, ColumnSlice<double>{dx, 0, shape.channels()}, dw);
  expect_rounded("dx", host(runtime, half_dx), host(runtime, dx));
  expect_unrounded("dw", host(runtime, half_dw), host(runtime, dw));

  // One token after the other has the same bits as all at once.
  const auto state = runtime.allocate_zero<bfloat16>("state", {1, shape.channels(), 3});
  for (std::int64_t t = 30; t < 34; ++t) {
    const auto step =
        qkv_conv_step(runtime, shape, ColumnSlice<bfloat16>{x.half.rows(t, t + 1), 0, shape.channels()},
                      weight.half, state);
    EXPECT_TRUE(same_bits(host(runtime, step.q), host(runtime, got.q.rows(t, t + 1)))) << t;
    EXPECT_TRUE(same_bits(host(runtime, step.v), host(runtime, got.v.rows(t, t + 1)))) << t;
  }
}

}  // namespace
}  // namespace deltaport
