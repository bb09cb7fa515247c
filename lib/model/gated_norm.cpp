// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/gated_norm.hpp"

#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/math.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/column_sum.hpp"
#include "model/gated_norm_packs.hpp"
#include "model/row_sum.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t block_rows = 64;  // rows are (token, head) pairs

template <class T>
struct GatedNormForward {
  std::int64_t heads;
  std::int64_t width;
  const T* x;
  const T* z;
  std::int64_t z_stride;
  const Accumulate<T>* weight;
  Accumulate<T> eps;
  T* y;
  Accumulate<T>* rstd;

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    using A = Accumulate<T>;
    const std::int64_t row = team.league_rank();
    const T* from = x + row * width;
    const T* gate = z + row / heads * z_stride + row % heads * width;
    const Accumulate<T>* w = weight;
    T* to = y + row * width;
    const A squares =
        row_sum<A>(team, width, [=](std::int64_t c) { return widen(from[c]) * widen(from[c]); });
    const A inverse = A(1) / Kokkos::sqrt(squares / static_cast<A>(width) + eps);
    row_for(team, width, [=](std::int64_t c) {
      to[c] = static_cast<T>(w[c] * (widen(from[c]) * inverse) * silu(widen(gate[c])));
    });
    Kokkos::single(Kokkos::PerThread(team), [=, this]() { rstd[row] = inverse; });
  }
};

// One team per block of rows, which keeps the block's part of the weight gradient.
template <class T>
struct GatedNormBackward {
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t width;
  const T* x;
  const T* z;
  std::int64_t z_stride;
  const Accumulate<T>* weight;
  const Accumulate<T>* rstd;
  const T* dy;
  T* dx;
  T* dz;
  std::int64_t dz_stride;
  T* y;
  Accumulate<T>* partial;  // [blocks, width]

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    using A = Accumulate<T>;
    const std::int64_t begin = std::int64_t{team.league_rank()} * block_rows;
    const std::int64_t end = begin + block_rows < rows ? begin + block_rows : rows;
    A* sums = partial + std::int64_t{team.league_rank()} * width;
    row_for(team, width, [=](std::int64_t c) { sums[c] = A(0); });
    for (std::int64_t row = begin; row < end; ++row) backward_row(team, row, sums);
  }

  KOKKOS_FORCEINLINE_FUNCTION void backward_row(const TeamMember& team, std::int64_t row,
                                                Accumulate<T>* sums) const {
    using A = Accumulate<T>;
    const T* from = x + row * width;
    const T* d = dy + row * width;
    const T* gate = z + row / heads * z_stride + row % heads * width;
    const Accumulate<T>* w = weight;
    T* dgate = dz + row / heads * dz_stride + row % heads * width;
    T* to = dx + row * width;
    const bool recompute = y != nullptr;
    T* out = recompute ? y + row * width : nullptr;
    const A inverse = rstd[row];
    // dx holds w dy silu(z), the gradient of the normalised row, until its mean with that row is known.
    row_for(team, width, [=](std::int64_t c) {
      const A unit = widen(from[c]) * inverse;
      const A z_c = widen(gate[c]);
      const A s = sigmoid(z_c);
      const A open = z_c * s;
      const A wd = w[c] * widen(d[c]);
      dgate[c] = static_cast<T>(wd * unit * (s * (A(1) + z_c * (A(1) - s))));
      if (recompute) out[c] = static_cast<T>(w[c] * unit * open);
      sums[c] += widen(d[c]) * unit * open;
      to[c] = static_cast<T>(wd * open);
    });
    const A dot =
        row_sum<A>(team, width, [=](std::int64_t c) { return widen(to[c]) * (widen(from[c]) * inverse); });
    const A mean = dot / static_cast<A>(width);
    row_for(team, width, [=](std::int64_t c) {
      to[c] = static_cast<T>(inverse * (widen(to[c]) - widen(from[c]) * inverse * mean));
    });
  }
};

template <class T>
void validate(const char* where, const Tensor<T>& x, const ColumnSlice<T>& z,
              const Tensor<Accumulate<T>>& weight) {
  DELTAPORT_VALIDATE(x.rank() == 3 && weight.rank() == 1 && x.extent(2) == weight.extent(0), ShapeError,
                     where, ": x has shape ", x.shape().str(), " and weight ", weight.shape().str(),
                     "; expected [T, HV, V] and [V]");
  DELTAPORT_VALIDATE(z.rows() == x.extent(0) && z.width == x.extent(1) * x.extent(2), ShapeError, where,
                     ": z has ", z.rows(), " rows of ", z.width, " for x of shape ", x.shape().str());
}

}  // namespace

template <class T>
GatedNormResult<T> gated_norm_forward(Runtime& runtime, const Tensor<T>& x, const ColumnSlice<T>& z,
                                      const Tensor<Accumulate<T>>& weight, double eps) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: gated_norm forward");
  validate("gated_norm_forward", x, z, weight);
  const std::int64_t heads = x.extent(1);
  const std::int64_t width = x.extent(2);
  GatedNormResult<T> result;
  result.y = runtime.allocate<T>("gated norm", Shape{x.extent(0), heads * width});
  result.rstd = runtime.allocate<Accumulate<T>>("gated norm rstd", Shape{x.extent(0), heads});
  const std::int64_t rows = x.extent(0) * heads;
  if (width <= widest_row &&
      packable(width, {x.data(), z.data(), weight.data(), result.y.data()}, {z.stride()}))
    for_each_group(runtime.compute(), "deltaport: gated_norm forward", rows, row_lanes(width),
                   PackedGatedNorm<T>{row_lanes(width), rows, heads, width, x.data(), z.data(), z.stride(),
                                      weight.data(), static_cast<Accumulate<T>>(eps), result.y.data(),
                                      result.rstd.data()});
  else
    for_each_row(runtime.compute(), "deltaport: gated_norm forward", rows,
                 GatedNormForward<T>{heads, width, x.data(), z.data(), z.stride(), weight.data(),
                                     static_cast<Accumulate<T>>(eps), result.y.data(), result.rstd.data()});
  return result;
}

template <class T>
GatedNormGradients<T> gated_norm_backward(Runtime& runtime, const Tensor<T>& x, const ColumnSlice<T>& z,
                                          const Tensor<Accumulate<T>>& weight,
                                          const Tensor<Accumulate<T>>& rstd, const Tensor<T>& dy,
                                          const ColumnSlice<T>& dz, const Tensor<Accumulate<T>>& dweight,
                                          const Tensor<T>& y) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: gated_norm backward");
  validate("gated_norm_backward", x, z, weight);
  validate("gated_norm_backward (gradients)", x, dz, dweight);
  const std::int64_t heads = x.extent(1);
  const std::int64_t width = x.extent(2);
  const std::int64_t rows = x.extent(0) * heads;
  DELTAPORT_VALIDATE(dy.size() == x.size() && rstd.size() == rows, ShapeError,
                     "gated_norm_backward: dy has shape ", dy.shape().str(), ", rstd ", rstd.shape().str(),
                     " for x of shape ", x.shape().str());
  DELTAPORT_VALIDATE(!y.defined() || y.size() == x.size(), ShapeError, "gated_norm_backward: y has shape ",
                     y.shape().str(), " for x of shape ", x.shape().str());
  GatedNormGradients<T> result;
  result.dx = runtime.allocate<T>("gated norm dx", x.shape());
  result.y = y.defined() ? y : runtime.allocate<T>("gated norm", Shape{x.extent(0), heads * width});
  const int lanes = row_lanes(width);
  PackedGatedNormBackward<T> packed{lanes,
                                    rows,
                                    heads,
                                    width,
                                    x.data(),
                                    z.data(),
                                    z.stride(),
                                    weight.data(),
                                    rstd.data(),
                                    dy.data(),
                                    result.dx.data(),
                                    dz.data(),
                                    dz.stride(),
                                    y.defined() ? nullptr : result.y.data(),
                                    nullptr};
  const bool by_packs = width <= widest_row &&
                        packable(width, {x.data(), z.data(), weight.data(), dy.data(), dz.data(), packed.y},
                                 {z.stride(), dz.stride()});
  const std::int64_t blocks = by_packs ? packed.blocks() : (rows + block_rows - 1) / block_rows;
  const auto partial = runtime.allocate<Accumulate<T>>("gated norm partials", Shape{blocks, width});
  packed.partial = partial.data();
  if (by_packs)
    for_each_group(runtime.compute(), "deltaport: gated_norm backward", blocks, lanes, packed);
  else
    for_each_row(runtime.compute(), "deltaport: gated_norm backward", blocks,
                 GatedNormBackward<T>{rows, heads, width, x.data(), z.data(), z.stride(), weight.data(),
                                      rstd.data(), dy.data(), result.dx.data(), dz.data(), dz.stride(),
                                      y.defined() ? nullptr : result.y.data(), partial.data()});
  add_column_sums(runtime, blocks, width, partial.data(), dweight.data());
  return result;
}

#define DELTAPORT_INSTANTIATE(T)                                                                           \
  template GatedNormResult<T> gated_norm_forward<T>(Runtime&, const Tensor<T>&, const ColumnSlice<T>&,     \
                                                    const Tensor<Accumulate<T>>&, double);                 \
  template GatedNormGradients<T> gated_norm_backward<T>(                                                   \
      Runtime&, const Tensor<T>&, const ColumnSlice<T>&, const Tensor<Accumulate<T>>&,                     \
      const Tensor<Accumulate<T>>&, const Tensor<T>&, const ColumnSlice<T>&, const Tensor<Accumulate<T>>&, \
      const Tensor<T>&);
DELTAPORT_INSTANTIATE(bfloat16)
DELTAPORT_INSTANTIATE(float)
DELTAPORT_INSTANTIATE(double)
#undef DELTAPORT_INSTANTIATE

}  // namespace deltaport
