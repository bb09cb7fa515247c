// SPDX-License-Identifier: Apache-2.0
// Backward of the short convolution with SiLU and normalisation. A task owns a block of tokens and one head.
// It walks the block's tokens and the three after it, recomputes each token's pre-activation, turns the
// output gradient into the gradient of the pre-activation, and keeps the last four of these rows: enough for
// the input gradient of the token three places back. Weight gradients are summed per block, then over blocks
// in ascending order.
#include "deltaport/core/host_simd.hpp"
#include "model/qkv_conv_packs.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

using qkv::max_taps;
constexpr std::int64_t block_tokens = 32;

template <class T>
struct ConvolveBackward {
  using A = Accumulate<T>;
  QkvShape shape;
  qkv::TapTable<T> taps;
  std::int64_t tokens;
  const T* x;
  std::int64_t x_stride;
  const std::int32_t* positions;
  const Accumulate<T>* rstd;
  const T* dout[3];
  T* dx;
  std::int64_t dx_stride;
  Accumulate<T>* partial;  // [blocks, max_taps, channels]

  // Gradient of one token's pre-activation into `row`; `unit` is room for the normalised output.
  KOKKOS_FORCEINLINE_FUNCTION void pre_activation_gradient(const TeamMember& team, const qkv::Segment& part,
                                                           std::int64_t index, std::int64_t t,
                                                           const qkv::Window<T>& in, A* row, A* unit) const {
    const std::int64_t heads = part.part == 2 ? shape.value_heads : shape.key_heads;
    const T* dy = dout[part.part] + (t * heads + part.head) * part.width;
    const T* w0 = taps.tap(0, part.channel);
    const T* w1 = taps.tap(1, part.channel);
    const T* w2 = taps.tap(2, part.channel);
    const T* w3 = taps.tap(3, part.channel);
    const T *x0 = in.back[0], *x1 = in.back[1], *x2 = in.back[2], *x3 = in.back[3];
    const A inverse = part.unit_length ? rstd[t * 2 * shape.key_heads + index] : A(1);
    row_for(team, part.width, [=](std::int64_t c) {
      const A pre = qkv::four_taps(w3[c], w2[c], w1[c], w0[c], x3[c], x2[c], x1[c], x0[c]);
      const A s = sigmoid(pre);
      unit[c] = pre * s * inverse;
      row[c] = s * (A(1) + pre * (A(1) - s));
    });
    // y = s / |s|:  ds = (dy - (dy . y) y) / |s|
    const A along = part.unit_length
                        ? row_sum<A>(team, part.width, [=](std::int64_t c) { return widen(dy[c]) * unit[c]; })
                        : A(0);
    row_for(team, part.width, [=](std::int64_t c) { row[c] *= inverse * (widen(dy[c]) - along * unit[c]); });
  }

  KOKKOS_FORCEINLINE_FUNCTION void add_weight_gradient(const TeamMember& team, const qkv::Segment& part,
                                                       const qkv::Window<T>& in, const A* row,
                                                       A* sums) const {
    const std::int64_t n = part.width;
    const T *x0 = in.back[0], *x1 = in.back[1], *x2 = in.back[2], *x3 = in.back[3];
    row_for(team, n, [=](std::int64_t c) {
      sums[c] += row[c] * widen(x0[c]);
      sums[n + c] += row[c] * widen(x1[c]);
      sums[2 * n + c] += row[c] * widen(x2[c]);
      sums[3 * n + c] += row[c] * widen(x3[c]);
    });
  }

  // dx of token u from the pre-activation gradients of u .. u + 3, as far as the document reaches.
  KOKKOS_FORCEINLINE_FUNCTION void input_gradient(const TeamMember& team, const qkv::Segment& part,
                                                  std::int64_t u, const A* ring, const A* zeros) const {
    const A* d[max_taps];
    for (int j = 0; j < max_taps; ++j) {
      const bool reaches = j == 0 || (u + j < tokens && positions[u + j] >= j);
      d[j] = reaches ? ring + ((u + j) % max_taps) * part.width : zeros;
    }
    const T* w0 = taps.tap(0, part.channel);
    const T* w1 = taps.tap(1, part.channel);
    const T* w2 = taps.tap(2, part.channel);
    const T* w3 = taps.tap(3, part.channel);
    const A *d0 = d[0], *d1 = d[1], *d2 = d[2], *d3 = d[3];
    T* to = dx + u * dx_stride + part.channel;
    row_for(team, part.width, [=](std::int64_t c) {
      to[c] = static_cast<T>(qkv::four_taps(w0[c], w1[c], w2[c], w3[c], d0[c], d1[c], d2[c], d3[c]));
    });
  }

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t segments = qkv::segment_count(shape);
    const std::int64_t block = team.league_rank() / segments;
    const std::int64_t index = team.league_rank() % segments;
    const qkv::Segment part = qkv::segment(shape, index);
    const std::int64_t n = part.width;
    const std::int64_t begin = block * block_tokens;
    const std::int64_t end = begin + block_tokens < tokens ? begin + block_tokens : tokens;
    A* ring = static_cast<A*>(team.team_scratch(0).get_shmem(scratch_bytes(n)));
    A* sums = ring + max_taps * n;
    A* unit = sums + max_taps * n;
    A* zeros = unit + n;
    row_for(team, max_taps * n, [=](std::int64_t c) { sums[c] = A(0); });
    row_for(team, n, [=](std::int64_t c) { zeros[c] = A(0); });
    for (std::int64_t t = begin; t < end + max_taps - 1; ++t) {
      // Tokens after the block matter only while they look back into it.
      if (t < tokens && (t < end || positions[t] > t - end)) {
        const auto in = qkv::window(x, x_stride, taps, t, std::int64_t{positions[t]}, part.channel);
        A* row = ring + (t % max_taps) * n;
        pre_activation_gradient(team, part, index, t, in, row, unit);
        if (t < end) add_weight_gradient(team, part, in, row, sums);
      }
      if (t - (max_taps - 1) >= begin) input_gradient(team, part, t - (max_taps - 1), ring, zeros);
    }
    A* to = partial + block * max_taps * taps.channels + part.channel;
    for (int j = 0; j < max_taps; ++j) {
      const A* from = sums + j * n;
      A* row = to + j * taps.channels;
      row_for(team, n, [=](std::int64_t c) { row[c] = from[c]; });
    }
  }

  static KOKKOS_FORCEINLINE_FUNCTION std::size_t scratch_bytes(std::int64_t width) {
    return static_cast<std::size_t>((2 * max_taps + 2) * width) * sizeof(A);
  }
};

template <class A>
struct SumWeightGradient {
  const A* partial;
  std::int64_t blocks;
  std::int64_t channels;
  std::int64_t width;
  A* dweight;  // [channels, 1, W]
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t distance = i / channels;
    const std::int64_t channel = i % channels;
    A sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b * max_taps * channels + i];
    dweight[channel * width + (width - 1 - distance)] += sum;
  }
};

/// Operands of one call.
template <class T>
struct Call {
  QkvShape shape;
  qkv::TapTable<T> taps;
  const ColumnSlice<T>& x;
  const std::int32_t* positions;
  const Accumulate<T>* rstd;
  const T* dout[3];
  const ColumnSlice<T>& dx;
  Accumulate<T>* partial;
};

template <class T>
void enqueue_rows(Runtime& runtime, const Call<T>& call) {
  const QkvShape& shape = call.shape;
  const std::int64_t tokens = call.x.rows();
  const ConvolveBackward<T> functor{
      shape,           call.taps,        tokens,      call.x.data(),
      call.x.stride(), call.positions,   call.rstd,   {call.dout[0], call.dout[1], call.dout[2]},
      call.dx.data(),  call.dx.stride(), call.partial};
  const std::int64_t widest = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
  const std::int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  TeamPolicy policy(runtime.compute(), static_cast<int>(blocks * qkv::segment_count(shape)), 1,
                    runs_on_host ? 1 : 32);
  policy.set_scratch_size(0,
                          Kokkos::PerTeam(static_cast<int>(ConvolveBackward<T>::scratch_bytes(widest) + 64)));
  enqueue_kernel("deltaport: qkv_conv backward", policy, functor);
}

template <int W, class T>
void enqueue_packed(Runtime& runtime, const Call<T>& call) {
  using Functor = qkv::PackedConvolveBackward<T, W>;
  static_assert(Functor::block_tokens == block_tokens);
  const Functor functor{
      {call.shape, call.taps, call.x.rows(), call.x.data(), call.x.stride(), call.positions},
      call.rstd,
      {call.dout[0], call.dout[1], call.dout[2]},
      call.dx.data(),
      call.dx.stride(),
      call.partial};
  for_each_group(runtime.compute(), "deltaport: qkv_conv backward",
                 functor.blocks() * qkv::segment_count(call.shape), functor.in.lanes, functor);
}

template <class A>
void add_weight_gradient(Runtime& runtime, const Tensor<A>& partial, std::int64_t width,
                         const Tensor<A>& dweight) {
  const std::int64_t blocks = partial.extent(0), channels = partial.extent(2);
  for_each_index(runtime.compute(), "deltaport: qkv_conv weight gradient", width * channels,
                 SumWeightGradient<A>{partial.data(), blocks, channels, width, dweight.data()});
}

template <class T>
void expect_shape(const char* name, const Tensor<T>& x, const Shape& expected) {
  DELTAPORT_VALIDATE(x.shape() == expected, ShapeError, "qkv_conv_backward: ", name, " has shape ",
                     x.shape().str(), ", expected ", expected.str());
}

}  // namespace

template <class T>
void qkv_conv_backward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                       const Tensor<T>& weight, const Tensor<std::int32_t>& positions,
                       const Tensor<Accumulate<T>>& rstd, const Tensor<T>& dq, const Tensor<T>& dk,
                       const Tensor<T>& dv, const ColumnSlice<T>& dx, const Tensor<Accumulate<T>>& dweight) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: qkv_conv backward");
  const std::int64_t tokens = x.rows();
  qkv::validate("qkv_conv_backward", shape, x, weight);
  expect_shape("positions", positions, Shape{tokens});
  expect_shape("rstd", rstd, Shape{tokens, 2 * shape.key_heads});
  expect_shape("dweight", dweight, weight.shape());
  DELTAPORT_VALIDATE(
      dq.size() == tokens * shape.keys() && dk.size() == dq.size() && dv.size() == tokens * shape.values(),
      ShapeError, "qkv_conv_backward: dq, dk, dv have shapes ", dq.shape().str(), ", ", dk.shape().str(),
      ", ", dv.shape().str(), " for ", tokens, " tokens");
  DELTAPORT_VALIDATE(dx.rows() == tokens && dx.width == x.width, ShapeError, "qkv_conv_backward: dx has ",
                     dx.rows(), " rows of ", dx.width, ", expected ", tokens, " of ", x.width);
  if (tokens == 0) return;
  const std::int64_t channels = shape.channels();
  const std::int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  const Tensor<T> table = qkv::make_tap_table(runtime, shape, weight);
  const auto partial =
      runtime.allocate<Accumulate<T>>("conv weight partials", Shape{blocks, max_taps, channels});
  const Call<T> call{shape,       {table.data(), channels},          x,  positions.data(),
                     rstd.data(), {dq.data(), dk.data(), dv.data()}, dx, partial.data()};
  if (!qkv::packable_segments(shape, {x.data(), dx.data(), dq.data(), dk.data(), dv.data()},
                              {x.stride(), dx.stride()}))
    enqueue_rows(runtime, call);
  else if (qkv::takes_narrow_packs(shape))
    enqueue_packed<qkv::narrow_pack>(runtime, call);
  else
    enqueue_packed<pack_width>(runtime, call);
  add_weight_gradient(runtime, partial, weight.extent(2), dweight);
}

#define DELTAPORT_INSTANTIATE(T)                                                                         \
  template void qkv_conv_backward<T>(Runtime&, const QkvShape&, const ColumnSlice<T>&, const Tensor<T>&, \
                                     const Tensor<std::int32_t>&, const Tensor<Accumulate<T>>&,          \
                                     const Tensor<T>&, const Tensor<T>&, const Tensor<T>&,               \
                                     const ColumnSlice<T>&, const Tensor<Accumulate<T>>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
