// SPDX-License-Identifier: Apache-2.0
// The kernels that devices run by packs, on stand-ins for their lanes, against the operators of this build.
#include "model/packs.hpp"

#include "deltaport/model/embedding.hpp"
#include "deltaport/model/gated_norm.hpp"
#include "deltaport/model/gates.hpp"
#include "deltaport/model/qkv_conv.hpp"
#include "deltaport/model/rms_norm.hpp"
#include "model/attention_packs.hpp"
#include "model/column_sum_packs.hpp"
#include "model/embedding_chains.hpp"
#include "model/gated_norm_packs.hpp"
#include "model/gdn2_gates_packs.hpp"
#include "model/gradient_check.hpp"
#include "model/lane_team.hpp"
#include "model/qkv_conv_packs.hpp"
#include "model/rms_norm_packs.hpp"
#include "model/swiglu_packs.hpp"

namespace deltaport {
namespace {

using namespace testing;
using Values = std::vector<float>;
constexpr double tolerance = 2e-6;

/// Room for `count` results that no kernel would write.
Values unwritten(std::int64_t count) {
  return Values(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN());
}
Values zeros(std::int64_t count) {
  return Values(static_cast<std::size_t>(count), 0.0f);
}

void add_sums(std::int64_t rows, std::int64_t columns, const Values& partial, Values& target) {
  using Sum = PackedColumnSum<float>;
  const Sum sum{rows, columns, rows, partial.data(), target.data(), Sum::Sums::add};
  ASSERT_EQ(sum.groups(), columns / Sum::W);
  run_groups(sum.groups(), Sum::lanes, sum);
}

TEST(Packs, rms_norm) {
  for (const std::int64_t size : {8, 264, 1024})
    for (const bool residual : {false, true}) {
      const std::int64_t rows = 19;
      Runtime runtime;
      ParameterSet<float> parameters;
      RmsNorm<float> norm(parameters, "norm", size, 1e-6);
      parameters.allocate(runtime);
      randomise(runtime, parameters, 3, 0.3);
      const auto x = random_tensor<float>(runtime, {rows, size}, 1),
                 delta = random_tensor<float>(runtime, {rows, size}, 2),
                 dy = random_tensor<float>(runtime, {rows, size}, 4);
      SavedTensors saved;
      Context context{runtime, saved, Mode::train};
      const auto want =
          residual ? norm.forward_residual(context, x, delta).normalised : norm.forward(context, x);
      const auto want_dx = norm.backward(context, dy, residual ? delta : Tensor<float>{});

      const Values xs = host(runtime, x), ds = host(runtime, delta), dys = host(runtime, dy),
                   w = host(runtime, norm.weight().value());
      Values sum = unwritten(rows * size), y = sum, dx = sum, rstd = unwritten(rows),
             partial = unwritten(gradient_blocks(rows) * size), dw = zeros(size);
      run_groups(rows, 32,
                 PackedNormRow<float>{rows, size, 1e-6f, xs.data(), residual ? ds.data() : nullptr, w.data(),
                                      sum.data(), y.data(), rstd.data()});
      const float* in = residual ? sum.data() : xs.data();
      run_groups(rows, 32,
                 PackedNormBackward<float>{rows, size, in, rstd.data(), w.data(), dys.data(),
                                           residual ? ds.data() : nullptr, dx.data()});
      const PackedNormWeightShare<float> share{rows, size, in, rstd.data(), dys.data(), partial.data()};
      run_groups(share.groups(), 32, share);
      add_sums(gradient_blocks(rows), size, partial, dw);
      EXPECT_LE(relative_error(y, host(runtime, want)), tolerance) << size;
      EXPECT_LE(relative_error(dx, host(runtime, want_dx)), tolerance) << size;
      EXPECT_LE(relative_error(dw, host(runtime, norm.weight().gradient())), tolerance) << size;
    }
}

TEST(Packs, swiglu) {
  const std::int64_t rows = 3, inner = 40;
  const Values gate_up = random_values<float>(rows * 2 * inner, 1),
               da = random_values<float>(rows * inner, 2);
  Values a = unwritten(rows * inner), both = gate_up, again = da;
  run_indices(rows * inner / 8, PackedSwiGlu<float>{inner, gate_up.data(), a.data()});
  run_indices(rows * inner / 8, PackedSwiGluBackward<float>{inner, both.data(), again.data()});
  EXPECT_TRUE(same_bits(a, again));
  for (std::int64_t i = 0; i < rows * inner; ++i) {
    const auto gate = static_cast<std::size_t>(i / inner * 2 * inner + i % inner), up = gate + inner,
               at = static_cast<std::size_t>(i);
    const double g = gate_up[gate], u = gate_up[up], s = 1.0 / (1.0 + std::exp(-g)), d = da[at];
    EXPECT_NEAR(a[at], g * s * u, 1e-5);
    EXPECT_NEAR(both[up], d * g * s, 1e-5);
    EXPECT_NEAR(both[gate], d * u * (s + g * s * (1.0 - s)), 1e-5);
  }
}

TEST(Packs, gdn2_gates) {
  for (const std::int64_t key_dim : {40, 128, 256}) {
    Runtime runtime;
    QkvShape shape;
    shape.key_heads = 2, shape.value_heads = 4, shape.key_dim = key_dim, shape.value_dim = 24;
    const std::int64_t tokens = 21, keys = shape.keys(), values = shape.values(), left = 8;
    const std::int64_t stride = left + 2 * keys + values + 16, b_at = left + keys, w_at = b_at + keys;
    const auto in = random_tensor<float>(runtime, {tokens, stride}, 1),
               a_log = random_tensor<float>(runtime, {2}, 2), bias = random_tensor<float>(runtime, {keys}, 3),
               dg = random_tensor<float>(runtime, {tokens, 2, key_dim}, 4),
               db = random_tensor<float>(runtime, {tokens, 2, key_dim}, 5),
               dw = random_tensor<float>(runtime, {tokens, 4, 24}, 6);
    const auto slices = [&](const Tensor<float>& of) {
      return std::array{ColumnSlice<float>{of, left, keys}, ColumnSlice<float>{of, b_at, keys},
                        ColumnSlice<float>{of, w_at, values}};
    };
    const auto [f, b, w] = slices(in);
    const auto want = gdn2_gates_forward<float>(runtime, shape, f, b, w, a_log, bias);
    const auto d_in = runtime.allocate_zero<float>("d in", in.shape()),
               d_log = runtime.allocate_zero<float>("d log", a_log.shape()),
               d_bias = runtime.allocate_zero<float>("d bias", bias.shape());
    const auto [df, d_b, d_w] = slices(d_in);
    gdn2_gates_backward<float>(runtime, shape, f, want.b, want.w, a_log, bias, {dg, db, dw}, df, d_b, d_w,
                               d_log, d_bias);

    const Values ins = host(runtime, in), logs = host(runtime, a_log), biases = host(runtime, bias),
                 dgs = host(runtime, dg), dbs = host(runtime, db), dws = host(runtime, dw);
    Values g = unwritten(tokens * keys), bs = g, ws = unwritten(tokens * values), d_ins = zeros(in.size());
    const PackedGdn2Gates<float> forward{
        keys,   values, key_dim,     ins.data() + left, ins.data() + b_at, ins.data() + w_at, stride,
        stride, stride, logs.data(), biases.data(),     g.data(),          bs.data(),         ws.data()};
    run_indices(tokens * forward.packs(), forward);
    EXPECT_LE(relative_error(g, host(runtime, want.g)), tolerance);
    EXPECT_LE(relative_error(bs, host(runtime, want.b)), tolerance);
    EXPECT_LE(relative_error(ws, host(runtime, want.w)), tolerance);

    const int lanes = row_lanes(key_dim);
    const std::int64_t blocks = 3;
    Values log_shares = unwritten(blocks * 2), bias_shares = unwritten(blocks * keys), log_sum = zeros(2),
           bias_sum = zeros(keys);
    const PackedDecayBackward<float> decay{lanes,
                                           tokens,
                                           8,
                                           2,
                                           key_dim,
                                           ins.data() + left,
                                           stride,
                                           logs.data(),
                                           biases.data(),
                                           dgs.data(),
                                           d_ins.data() + left,
                                           stride,
                                           log_shares.data(),
                                           bias_shares.data()};
    ASSERT_EQ(decay.groups(), blocks * 2);
    run_groups(decay.groups(), lanes, decay);
    const PackedSigmoidBackward<float> sigmoids{
        keys,       values,     bs.data(),           ws.data(),
        dbs.data(), dws.data(), d_ins.data() + b_at, d_ins.data() + w_at,
        stride,     stride};
    run_indices(tokens * sigmoids.packs(), sigmoids);
    for (std::int64_t block = 0; block < blocks; ++block) {
      for (std::int64_t h = 0; h < 2; ++h) log_sum[h] += log_shares[block * 2 + h];
      for (std::int64_t c = 0; c < keys; ++c) bias_sum[c] += bias_shares[block * keys + c];
    }
    EXPECT_LE(relative_error(d_ins, host(runtime, d_in)), tolerance);
    EXPECT_LE(relative_error(log_sum, host(runtime, d_log)), tolerance);
    EXPECT_LE(relative_error(bias_sum, host(runtime, d_bias)), tolerance);
  }
}

TEST(Packs, gated_norm) {
  for (const std::int64_t width : {40, 128, 256}) {
    Runtime runtime;
    const std::int64_t tokens = 7, heads = 3, left = 8, stride = left + heads * width + 16;
    const std::int64_t rows = tokens * heads;
    const auto x = random_tensor<float>(runtime, {tokens, heads, width}, 1),
               dy = random_tensor<float>(runtime, {tokens, heads, width}, 2),
               z = random_tensor<float>(runtime, {tokens, stride}, 3),
               w = random_tensor<float>(runtime, {width}, 4);
    const ColumnSlice<float> slice{z, left, heads * width};
    const auto want = gated_norm_forward<float>(runtime, x, slice, w, 1e-6);
    const auto dz = runtime.allocate_zero<float>("dz", z.shape()),
               dw = runtime.allocate_zero<float>("dw", w.shape());
    const auto gradients =
        gated_norm_backward<float>(runtime, x, slice, w, want.rstd, dy, {dz, left, heads * width}, dw);

    const Values xs = host(runtime, x), zs = host(runtime, z), ws = host(runtime, w), dys = host(runtime, dy);
    Values y = unwritten(x.size()), rstd = unwritten(rows), dx = y, again = y, dzs = zeros(z.size()),
           dws = zeros(width);
    const int lanes = row_lanes(width);
    run_groups(rows, lanes,
               PackedGatedNorm<float>{lanes, rows, heads, width, xs.data(), zs.data() + left, stride,
                                      ws.data(), 1e-6f, y.data(), rstd.data()});
    PackedGatedNormBackward<float> backward{
        lanes,  rows,         heads,       width,      xs.data(), zs.data() + left,
        stride, ws.data(),    rstd.data(), dys.data(), dx.data(), dzs.data() + left,
        stride, again.data(), nullptr};
    Values partial = unwritten(backward.blocks() * width);
    backward.partial = partial.data();
    run_groups(backward.blocks(), lanes, backward);
    add_sums(backward.blocks(), width, partial, dws);
    EXPECT_LE(relative_error(y, host(runtime, want.y)), tolerance) << width;
    EXPECT_LE(relative_error(again, host(runtime, want.y)), tolerance) << width;
    EXPECT_LE(relative_error(rstd, host(runtime, want.rstd)), tolerance) << width;
    EXPECT_LE(relative_error(dx, host(runtime, gradients.dx)), tolerance) << width;
    EXPECT_LE(relative_error(dzs, host(runtime, dz)), tolerance) << width;
    EXPECT_LE(relative_error(dws, host(runtime, dw)), tolerance) << width;
  }
}

template <int W>
void convolution_by_packs(const QkvShape& shape, std::int64_t taps) {
  Runtime runtime;
  const std::vector<std::int32_t> cu = {0, 1, 3, 6, 6, 32, 33, 63, 66, 70};
  const std::int64_t tokens = cu.back(), channels = shape.channels(), stride = channels + 8;
  const Sequences sequences = make_sequences(runtime, cu, tokens);
  const auto x = random_tensor<float>(runtime, {tokens, stride}, 1),
             weight = random_tensor<float>(runtime, {channels, 1, taps}, 2);
  const ColumnSlice<float> slice{x, 8, channels};
  const auto want = qkv_conv_forward(runtime, shape, slice, weight, sequences.positions);
  const auto dq = random_tensor<float>(runtime, want.q.shape(), 3),
             dk = random_tensor<float>(runtime, want.k.shape(), 4),
             dv = random_tensor<float>(runtime, want.v.shape(), 5);
  const auto dx = runtime.allocate_zero<float>("dx", x.shape()),
             dweight = runtime.allocate_zero<float>("dweight", weight.shape());
  qkv_conv_backward(runtime, shape, slice, weight, sequences.positions, want.rstd, dq, dk, dv,
                    {dx, 8, channels}, dweight);

  const Values xs = host(runtime, x), table = host(runtime, qkv::make_tap_table(runtime, shape, weight)),
               dqs = host(runtime, dq), dks = host(runtime, dk), dvs = host(runtime, dv);
  const auto positions = host(runtime, sequences.positions);
  const qkv::PackedConvolution<float, W> in{shape,  {table.data(), channels}, tokens, xs.data() + 8,
                                            stride, positions.data()};
  Values q = unwritten(dq.size()), k = unwritten(dk.size()), v = unwritten(dv.size()),
         rstd = unwritten(want.rstd.size()), dxs = zeros(x.size());
  const qkv::PackedConvolveForward<float, W> forward{in, {q.data(), k.data(), v.data()}, rstd.data()};
  run_groups(forward.groups(), 32, forward);
  qkv::PackedConvolveBackward<float, W> backward{
      in, rstd.data(), {dqs.data(), dks.data(), dvs.data()}, dxs.data() + 8, stride, nullptr};
  Values partial = unwritten(backward.blocks() * qkv::max_taps * channels);
  backward.partial = partial.data();
  run_groups(backward.blocks() * qkv::segment_count(shape), 32, backward);
  Values dws = zeros(dweight.size());
  for (std::int64_t b = 0; b < backward.blocks(); ++b)
    for (std::int64_t j = 0; j < taps; ++j)
      for (std::int64_t c = 0; c < channels; ++c)
        dws[static_cast<std::size_t>(c * taps + taps - 1 - j)] +=
            partial[static_cast<std::size_t>((b * qkv::max_taps + j) * channels + c)];
  EXPECT_LE(relative_error(q, host(runtime, want.q)), tolerance);
  EXPECT_LE(relative_error(k, host(runtime, want.k)), tolerance);
  EXPECT_LE(relative_error(v, host(runtime, want.v)), tolerance);
  EXPECT_LE(relative_error(rstd, host(runtime, want.rstd)), tolerance);
  EXPECT_LE(relative_error(dxs, host(runtime, dx)), tolerance);
  EXPECT_LE(relative_error(dws, host(runtime, dweight)), tolerance);
}

TEST(Packs, convolution) {
  convolution_by_packs<qkv::narrow_pack>({2, 4, 128, 64}, 4);
  convolution_by_packs<qkv::narrow_pack>({1, 2, 24, 40}, 3);
  convolution_by_packs<pack_width>({1, 1, 256, 136}, 4);
}

template <class D>
void rotation_by_packs(const AttentionLayout& layout) {
  Runtime runtime;
  const std::int64_t tokens = 21, hd = layout.head_dim;
  const auto projections = random_tensor<float>(runtime, {tokens, layout.width()}, 1),
             qw = random_tensor<float>(runtime, {hd}, 2), kw = random_tensor<float>(runtime, {hd}, 3);
  const auto table = runtime.allocate<float>("table", {tokens, layout.rotary_dim});
  rotation_table<float>(runtime, tokens, layout.rotary_dim, 1e4, nullptr, 5, table.data());
  const HeadNorms<float> norms{qw.data(), kw.data(), 1e-6};
  const auto q = runtime.allocate<float>("q", {tokens, layout.heads, hd}),
             k = runtime.allocate<float>("k", {tokens, layout.kv_heads, hd});
  norm_and_rotate<float>(runtime, tokens, layout, norms, projections.data(), table.data(), q.data(),
                         k.data());
  const auto dq = random_tensor<float>(runtime, q.shape(), 4),
             dk = random_tensor<float>(runtime, k.shape(), 5);
  const auto d_projections = runtime.allocate_zero<float>("dp", projections.shape());
  const auto dqw = runtime.allocate_zero<float>("dqw", {hd}), dkw = runtime.allocate_zero<float>("dkw", {hd});
  const Values dqs = host(runtime, dq), dks = host(runtime, dk);  // the operator may overwrite them
  norm_and_rotate_backward<float>(runtime, tokens, layout, norms, projections.data(), table.data(), dq.data(),
                                  dk.data(), d_projections.data(), dqw.data(), dkw.data());

  const Values ps = host(runtime, projections), ts = host(runtime, table), qws = host(runtime, qw),
               kws = host(runtime, kw);
  const int lanes = row_lanes(hd);
  const HeadNorms<float> on_host{qws.data(), kws.data(), 1e-6};
  Values qs = unwritten(q.size()), ks = unwritten(k.size()), dps = zeros(projections.size());
  const PackedNormAndRotate<float> forward{lanes,     tokens,    layout,    on_host,
                                           ps.data(), ts.data(), qs.data(), ks.data()};
  run_groups(forward.groups(), lanes, forward);
  const std::int64_t blocks = gradient_blocks(tokens);
  Values query = unwritten(blocks * layout.heads * hd), key = unwritten(blocks * layout.kv_heads * hd),
         dqws = zeros(hd), dkws = zeros(hd);
  const std::vector<D> dqd(dqs.begin(), dqs.end()), dkd(dks.begin(), dks.end());
  const PackedNormAndRotateBackward<float, D> backward{lanes,      tokens,       layout,     on_host,
                                                       ps.data(),  ts.data(),    dqd.data(), dkd.data(),
                                                       dps.data(), query.data(), key.data()};
  run_groups(backward.groups(), lanes, backward);
  add_sums(blocks * layout.heads, hd, query, dqws);
  add_sums(blocks * layout.kv_heads, hd, key, dkws);
  const double rounding = is_half<D> ? 0.01 : tolerance;
  EXPECT_LE(relative_error(qs, host(runtime, q)), tolerance);
  EXPECT_LE(relative_error(ks, host(runtime, k)), tolerance);
  EXPECT_LE(relative_error(dps, host(runtime, d_projections)), rounding);
  EXPECT_LE(relative_error(dqws, host(runtime, dqw)), rounding);
  EXPECT_LE(relative_error(dkws, host(runtime, dkw)), rounding);
}

TEST(Packs, head_norms_and_rotation) {
  rotation_by_packs<float>({3, 1, 64, 16});
  rotation_by_packs<float>({4, 2, 256, 64});
  rotation_by_packs<bfloat16>({2, 2, 40, 32});
}

TEST(Packs, attention_gate) {
  for (const std::int64_t hd : {40, 256}) {
    Runtime runtime;
    const AttentionLayout layout{3, 1, hd, 16};
    const std::int64_t tokens = 5, inner = layout.heads * hd;
    const auto projections = random_tensor<float>(runtime, {tokens, layout.width()}, 1),
               o = random_tensor<float>(runtime, {tokens, inner}, 2),
               dy = random_tensor<float>(runtime, {tokens, inner}, 3);
    const Values ps = host(runtime, projections), os = host(runtime, o);
    Values dys = host(runtime, dy), ys = unwritten(inner * tokens), again = ys,
           dps = zeros(projections.size()), deltas = unwritten(layout.heads * tokens);
    const auto y = runtime.allocate<float>("y", o.shape()),
               dp = runtime.allocate_zero<float>("dp", projections.shape()),
               delta = runtime.allocate<float>("delta", {layout.heads, tokens});
    apply_gate_backward<float>(runtime, tokens, layout, projections.data(), o.data(), dy.data(), y.data(),
                               dp.data(), delta.data());
    const int lanes = row_lanes(hd);
    run_indices(tokens * inner / 8, PackedGate<float>{layout, ps.data(), os.data(), ys.data()});
    run_groups(tokens * layout.heads, lanes,
               PackedGateBackward<float>{lanes, tokens, layout, ps.data(), os.data(), dys.data(),
                                         again.data(), dps.data(), deltas.data()});
    EXPECT_LE(relative_error(ys, host(runtime, y)), tolerance);
    EXPECT_LE(relative_error(again, host(runtime, y)), tolerance);
    EXPECT_LE(relative_error(dys, host(runtime, dy)), tolerance);
    EXPECT_LE(relative_error(dps, host(runtime, dp)), tolerance);
    EXPECT_LE(relative_error(deltas, host(runtime, delta)), tolerance);
  }
}

TEST(Packs, embedding) {
  const std::int64_t vocab = 11, hidden = 16;
  const std::vector<std::int32_t> tokens = {3, 0, 10, 3, -1, 3, 7, 0, 11, 3, 10};
  const auto count = static_cast<std::int64_t>(tokens.size());
  const Values dy = random_values<float>(count * hidden, 1), table = random_values<float>(vocab * hidden, 2),
               before = random_values<float>(vocab * hidden, 3);
  Values gradient = before, y = unwritten(count * hidden), want = before;
  std::vector<std::int32_t> next(static_cast<std::size_t>(2 * count), -7);
  run_groups(count, 32, LinkEqualTokens{count, vocab, tokens.data(), next.data()});
  run_indices(count * hidden / 8,
              AddChains<float>{count, hidden, tokens.data(), next.data(), dy.data(), gradient.data()});
  run_indices(count * hidden / 8, GatherPacks<float>{vocab, hidden, tokens.data(), table.data(), y.data()});
  for (std::size_t t = 0; t < tokens.size(); ++t)
    for (std::size_t c = 0; c < static_cast<std::size_t>(hidden); ++c) {
      const bool known = tokens[t] >= 0 && tokens[t] < vocab;
      const std::size_t at = t * hidden + c;
      if (!known) {
        EXPECT_TRUE(std::isnan(y[at]));
        continue;
      }
      const std::size_t row = static_cast<std::size_t>(tokens[t]) * hidden + c;
      want[row] += dy[at];
      EXPECT_EQ(y[at], table[row]);
    }
  EXPECT_TRUE(same_bits(gradient, want));
}

TEST(Packs, sums_in_place) {
  Values x = random_values<float>(24, 1);
  const Values delta = random_values<float>(24, 2), before = x;
  run_indices(3, PackedAddInPlace<float>{x.data(), delta.data()});
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], before[i] + delta[i]);
}

TEST(Packs, column_sums_of_many_rows) {
  for (const std::int64_t rows : {1, 31, 32, 100}) {
    const Values partial = random_values<float>(rows * 8, 1);
    Values target(8, 1.0f), want(8, 1.0f);
    for (std::int64_t i = 0; i < rows * 8; ++i)
      want[static_cast<std::size_t>(i % 8)] += partial[static_cast<std::size_t>(i)];
    add_sums(rows, 8, partial, target);
    EXPECT_LE(relative_error(target, want), tolerance) << rows;
  }
}

TEST(Packs, column_sums_by_slabs) {
  using Sum = PackedColumnSum<float>;
  const std::int64_t rows = 100, columns = 12, slab = 48;
  const Values partial = random_values<float>(rows * columns, 3);
  Sum first{rows, columns, slab, partial.data(), nullptr, Sum::Sums::write};
  ASSERT_EQ(first.slabs(), 3);
  Values sums = unwritten(3 * columns), target(columns, 2.0f), want(columns, 2.0f);
  first.sums = sums.data();
  run_groups(first.groups(), Sum::lanes, first);
  add_sums(3, columns, sums, target);
  for (std::int64_t i = 0; i < rows * columns; ++i)
    want[static_cast<std::size_t>(i % columns)] += partial[static_cast<std::size_t>(i)];
  EXPECT_LE(relative_error(target, want), tolerance);
}

}  // namespace
}  // namespace deltaport
