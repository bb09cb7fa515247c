// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/qkv_conv.hpp"

#include "deltaport/core/host_simd.hpp"
#include "model/qkv_conv_packs.hpp"
#include "model/row_sum.hpp"

namespace deltaport {

QkvShape QkvShape::of(const LinearMixerConfig& c) {
  DELTAPORT_VALIDATE(
      c.num_key_heads > 0 && c.num_value_heads > 0 && c.key_head_dim > 0 && c.value_head_dim > 0, ConfigError,
      "model.linear: heads and head dimensions must be positive");
  DELTAPORT_VALIDATE(c.num_value_heads % c.num_key_heads == 0, ConfigError, "model.linear: num_value_heads (",
                     c.num_value_heads, ") must be a multiple of num_key_heads (", c.num_key_heads, ")");
  return {c.num_key_heads, c.num_value_heads, c.key_head_dim, c.value_head_dim};
}

namespace qkv {

template <class T>
struct FillTapTable {
  const T* weight;
  std::int64_t channels;
  std::int64_t width;
  T* rows;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t distance = i / channels;
    const std::int64_t channel = i % channels;
    rows[i] = distance < width ? weight[channel * width + (width - 1 - distance)] : T{};
  }
};

template <class T>
Tensor<T> make_tap_table(Runtime& runtime, const QkvShape& shape, const Tensor<T>& weight) {
  const std::int64_t channels = shape.channels();
  Tensor<T> rows = runtime.allocate<T>("conv taps", Shape{max_taps + 1, channels});
  // A width of at most max_taps leaves the last row, and any row beyond the width, zero.
  for_each_index(runtime.compute(), "deltaport: conv taps", rows.size(),
                 FillTapTable<T>{weight.data(), channels, weight.extent(2), rows.data()});
  return rows;
}

template <class T>
void validate(const char* where, const QkvShape& shape, const ColumnSlice<T>& x, const Tensor<T>& weight) {
  DELTAPORT_VALIDATE(x.width == shape.channels(), ShapeError, where, ": x has ", x.width,
                     " channels, expected ", shape.channels());
  DELTAPORT_VALIDATE(weight.rank() == 3 && weight.extent(0) == shape.channels() && weight.extent(1) == 1 &&
                         weight.extent(2) >= 1 && weight.extent(2) <= max_taps,
                     ShapeError, where, ": weight has shape ", weight.shape().str(), ", expected [",
                     shape.channels(), ", 1, W] with W from 1 to ", max_taps);
}

template Tensor<bfloat16> make_tap_table<bfloat16>(Runtime&, const QkvShape&, const Tensor<bfloat16>&);
template Tensor<float> make_tap_table<float>(Runtime&, const QkvShape&, const Tensor<float>&);
template Tensor<double> make_tap_table<double>(Runtime&, const QkvShape&, const Tensor<double>&);
template void validate<bfloat16>(const char*, const QkvShape&, const ColumnSlice<bfloat16>&,
                                 const Tensor<bfloat16>&);
template void validate<float>(const char*, const QkvShape&, const ColumnSlice<float>&, const Tensor<float>&);
template void validate<double>(const char*, const QkvShape&, const ColumnSlice<double>&,
                               const Tensor<double>&);

}  // namespace qkv

namespace {

// Convolution, SiLU and normalisation of one segment of one token, shared by training and decoding.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void convolve_segment(const TeamMember& team, const qkv::Segment& part,
                                                  const qkv::TapTable<T>& taps, const qkv::Window<T>& in,
                                                  T* out, Accumulate<T>* rstd) {
  using A = Accumulate<T>;
  const T* w0 = taps.tap(0, part.channel);
  const T* w1 = taps.tap(1, part.channel);
  const T* w2 = taps.tap(2, part.channel);
  const T* w3 = taps.tap(3, part.channel);
  const T *x0 = in.back[0], *x1 = in.back[1], *x2 = in.back[2], *x3 = in.back[3];
  row_for(team, part.width, [=](std::int64_t c) {
    out[c] = static_cast<T>(silu(qkv::four_taps(w3[c], w2[c], w1[c], w0[c], x3[c], x2[c], x1[c], x0[c])));
  });
  if (!part.unit_length) return;
  const A squares =
      row_sum<A>(team, part.width, [=](std::int64_t c) { return widen(out[c]) * widen(out[c]); });
  const A inverse = A(1) / Kokkos::sqrt(squares + static_cast<A>(qkv::length_eps));
  row_for(team, part.width, [=](std::int64_t c) { out[c] = static_cast<T>(widen(out[c]) * inverse); });
  Kokkos::single(Kokkos::PerThread(team), [=]() { *rstd = inverse; });
}

template <class T>
struct ConvolveToken {
  QkvShape shape;
  qkv::TapTable<T> taps;
  const T* x;
  std::int64_t stride;
  const std::int32_t* positions;
  T* out[3];
  Accumulate<T>* rstd;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t segments = qkv::segment_count(shape);
    const std::int64_t t = team.league_rank() / segments;
    const std::int64_t index = team.league_rank() % segments;
    const qkv::Segment part = qkv::segment(shape, index);
    const auto in = qkv::window(x, stride, taps, t, std::int64_t{positions[t]}, part.channel);
    const std::int64_t heads = part.part == 2 ? shape.value_heads : shape.key_heads;
    convolve_segment(team, part, taps, in, out[part.part] + (t * heads + part.head) * part.width,
                     rstd + t * 2 * shape.key_heads + index);
  }
};

// Decoding: the window comes from the state, which is then moved on by one token.
template <class T>
struct StepState {
  const T* x;
  std::int64_t stride;
  std::int64_t channels;
  std::int64_t width;
  T* state;
  T* window;  // [N, max_taps, channels], nearest token first
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t n = i / channels;
    const std::int64_t c = i % channels;
    T* old = state + i * (width - 1);
    T* to = window + n * qkv::max_taps * channels + c;
    const T now = x[n * stride + c];
    to[0] = now;
    for (std::int64_t j = 1; j < qkv::max_taps; ++j) to[j * channels] = j < width ? old[width - 1 - j] : T{};
    for (std::int64_t j = 0; j + 2 < width; ++j) old[j] = old[j + 1];
    if (width > 1) old[width - 2] = now;
  }
};

template <class T>
struct ConvolveWindow {
  QkvShape shape;
  qkv::TapTable<T> taps;
  const T* windows;
  T* out[3];
  Accumulate<T>* rstd;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t segments = qkv::segment_count(shape);
    const std::int64_t n = team.league_rank() / segments;
    const std::int64_t index = team.league_rank() % segments;
    const qkv::Segment part = qkv::segment(shape, index);
    qkv::Window<T> in;
    for (int j = 0; j < qkv::max_taps; ++j)
      in.back[j] = windows + (n * qkv::max_taps + j) * taps.channels + part.channel;
    const std::int64_t heads = part.part == 2 ? shape.value_heads : shape.key_heads;
    convolve_segment(team, part, taps, in, out[part.part] + (n * heads + part.head) * part.width,
                     rstd + n * 2 * shape.key_heads + index);
  }
};

// The tokens before each run by distance, a row of channels each.
template <class T>
struct GatherHistory {
  std::int64_t channels, width;
  const T* state;
  T* history;  // [M, max_taps - 1, channels], nearest token first
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t rows = qkv::max_taps - 1, c = i % channels, j = i / channels % rows;
    const std::int64_t m = i / channels / rows;
    history[i] = j + 1 < width ? state[(m * channels + c) * (width - 1) + width - 2 - j] : T{};
  }
};

// The first tokens of each run again, which reach back beyond it.
template <class T>
struct ConvolveFirst {
  QkvShape shape;
  qkv::TapTable<T> taps;
  const T* x;
  std::int64_t stride;
  const std::int32_t* cu_seqlens;
  const T* history;
  T* out[3];
  Accumulate<T>* rstd;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    constexpr std::int64_t rows = qkv::max_taps - 1;
    const std::int64_t segments = qkv::segment_count(shape), index = team.league_rank() % segments;
    const std::int64_t j = team.league_rank() / segments % rows, m = team.league_rank() / segments / rows;
    const std::int64_t t = cu_seqlens[m] + j;
    if (t >= cu_seqlens[m + 1]) return;
    const qkv::Segment part = qkv::segment(shape, index);
    qkv::Window<T> in;
    for (std::int64_t i = 0; i < qkv::max_taps; ++i)
      in.back[i] =
          part.channel + (i <= j ? x + (t - i) * stride : history + (m * rows + (i - j - 1)) * taps.channels);
    const std::int64_t heads = part.part == 2 ? shape.value_heads : shape.key_heads;
    convolve_segment(team, part, taps, in, out[part.part] + (t * heads + part.head) * part.width,
                     rstd + t * 2 * shape.key_heads + index);
  }
};

// The state after a run: its last tokens, behind what is left of those before it.
template <class T>
struct MoveState {
  const T* x;
  std::int64_t stride, channels, width;
  const std::int32_t* cu_seqlens;
  T* state;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const std::int64_t m = i / channels, c = i % channels, kept = width - 1;
    const std::int64_t end = cu_seqlens[m + 1], length = end - cu_seqlens[m];
    T* to = state + i * kept;
    for (std::int64_t k = 0; k < kept; ++k)
      to[k] = k + length < kept ? to[k + length] : x[(end - kept + k) * stride + c];
  }
};

template <class T>
QkvConvResult<T> allocate_result(Runtime& runtime, const QkvShape& shape, std::int64_t tokens) {
  QkvConvResult<T> result;
  result.q = runtime.allocate<T>("q", Shape{tokens, shape.key_heads, shape.key_dim});
  result.k = runtime.allocate<T>("k", Shape{tokens, shape.key_heads, shape.key_dim});
  result.v = runtime.allocate<T>("v", Shape{tokens, shape.value_heads, shape.value_dim});
  result.rstd = runtime.allocate<Accumulate<T>>("qk rstd", Shape{tokens, 2 * shape.key_heads});
  return result;
}

template <class T, int W>
void enqueue_packed(Runtime& runtime, const QkvShape& shape, const qkv::TapTable<T>& taps,
                    const ColumnSlice<T>& x, const Tensor<std::int32_t>& positions,
                    const QkvConvResult<T>& result) {
  const qkv::PackedConvolveForward<T, W> functor{
      {shape, taps, x.rows(), x.data(), x.stride(), positions.data()},
      {result.q.data(), result.k.data(), result.v.data()},
      result.rstd.data()};
  for_each_group(runtime.compute(), "deltaport: qkv_conv forward", functor.groups(), functor.in.lanes,
                 functor);
}

/// False where rows cannot be read by packs.
template <class T>
bool forward_by_packs(Runtime& runtime, const QkvShape& shape, const qkv::TapTable<T>& taps,
                      const ColumnSlice<T>& x, const Tensor<std::int32_t>& positions,
                      const QkvConvResult<T>& result) {
  if (!qkv::packable_segments(shape, {x.data(), taps.rows, result.q.data(), result.k.data(), result.v.data()},
                              {x.stride()}))
    return false;
  if (qkv::takes_narrow_packs(shape))
    enqueue_packed<T, qkv::narrow_pack>(runtime, shape, taps, x, positions, result);
  else
    enqueue_packed<T, pack_width>(runtime, shape, taps, x, positions, result);
  return true;
}

}  // namespace

template <class T>
QkvConvResult<T> qkv_conv_forward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                                  const Tensor<T>& weight, const Tensor<std::int32_t>& positions) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: qkv_conv forward");
  qkv::validate("qkv_conv_forward", shape, x, weight);
  DELTAPORT_VALIDATE(positions.size() == x.rows(), ShapeError, "qkv_conv_forward: positions has ",
                     positions.size(), " entries for ", x.rows(), " tokens");
  QkvConvResult<T> result = allocate_result<T>(runtime, shape, x.rows());
  const Tensor<T> table = qkv::make_tap_table(runtime, shape, weight);
  const qkv::TapTable<T> taps{table.data(), shape.channels()};
  if (forward_by_packs(runtime, shape, taps, x, positions, result)) return result;
  for_each_row(runtime.compute(), "deltaport: qkv_conv forward", x.rows() * qkv::segment_count(shape),
               ConvolveToken<T>{shape,
                                taps,
                                x.data(),
                                x.stride(),
                                positions.data(),
                                {result.q.data(), result.k.data(), result.v.data()},
                                result.rstd.data()});
  return result;
}

template <class T>
QkvConvResult<T> qkv_conv_step(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                               const Tensor<T>& weight, const Tensor<T>& state) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: qkv_conv step");
  qkv::validate("qkv_conv_step", shape, x, weight);
  const std::int64_t count = x.rows();
  const std::int64_t width = weight.extent(2);
  DELTAPORT_VALIDATE(state.shape() == (Shape{count, shape.channels(), width - 1}), ShapeError,
                     "qkv_conv_step: state has shape ", state.shape().str(), ", expected ",
                     Shape{count, shape.channels(), width - 1}.str());
  QkvConvResult<T> result = allocate_result<T>(runtime, shape, count);
  const Tensor<T> table = qkv::make_tap_table(runtime, shape, weight);
  const qkv::TapTable<T> taps{table.data(), shape.channels()};
  const Tensor<T> windows =
      runtime.allocate<T>("conv windows", Shape{count, qkv::max_taps, shape.channels()});
  for_each_index(runtime.compute(), "deltaport: qkv_conv step state", count * shape.channels(),
                 StepState<T>{x.data(), x.stride(), shape.channels(), width, state.data(), windows.data()});
  for_each_row(runtime.compute(), "deltaport: qkv_conv step", count * qkv::segment_count(shape),
               ConvolveWindow<T>{shape,
                                 taps,
                                 windows.data(),
                                 {result.q.data(), result.k.data(), result.v.data()},
                                 result.rstd.data()});
  return result;
}

template <class T>
QkvConvResult<T> qkv_conv_prefill(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& x,
                                  const Tensor<T>& weight, const Sequences& sequences,
                                  const Tensor<T>& state) {
  QkvConvResult<T> result = qkv_conv_forward(runtime, shape, x, weight, sequences.positions);
  WorkScope scope(runtime, Work::elementwise, "deltaport: qkv_conv prefill");
  const std::int64_t count = sequences.count(), channels = shape.channels(), width = weight.extent(2);
  DELTAPORT_VALIDATE(state.shape() == (Shape{count, channels, width - 1}), ShapeError,
                     "qkv_conv_prefill: state has shape ", state.shape().str(), ", expected ",
                     Shape{count, channels, width - 1}.str());
  const Tensor<T> table = qkv::make_tap_table(runtime, shape, weight);
  const Tensor<T> history = runtime.allocate<T>("conv history", Shape{count, qkv::max_taps - 1, channels});
  const std::int32_t* cu_seqlens = sequences.cu_seqlens.data();
  for_each_index(runtime.compute(), "deltaport: qkv_conv history", history.size(),
                 GatherHistory<T>{channels, width, state.data(), history.data()});
  for_each_row(runtime.compute(), "deltaport: qkv_conv prefill",
               count * (qkv::max_taps - 1) * qkv::segment_count(shape),
               ConvolveFirst<T>{shape,
                                {table.data(), channels},
                                x.data(),
                                x.stride(),
                                cu_seqlens,
                                history.data(),
                                {result.q.data(), result.k.data(), result.v.data()},
                                result.rstd.data()});
  for_each_index(runtime.compute(), "deltaport: qkv_conv state", count * channels,
                 MoveState<T>{x.data(), x.stride(), channels, width, cu_seqlens, state.data()});
  return result;
}

#define DELTAPORT_INSTANTIATE(T)                                                                  \
  template QkvConvResult<T> qkv_conv_forward<T>(Runtime&, const QkvShape&, const ColumnSlice<T>&, \
                                                const Tensor<T>&, const Tensor<std::int32_t>&);   \
  template QkvConvResult<T> qkv_conv_step<T>(Runtime&, const QkvShape&, const ColumnSlice<T>&,    \
                                             const Tensor<T>&, const Tensor<T>&);                 \
  template QkvConvResult<T> qkv_conv_prefill<T>(Runtime&, const QkvShape&, const ColumnSlice<T>&, \
                                                const Tensor<T>&, const Sequences&, const Tensor<T>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
