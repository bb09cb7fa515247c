// SPDX-License-Identifier: Apache-2.0
#include "deltaport/model/rms_norm.hpp"

#include "deltaport/core/host_simd.hpp"
#include "deltaport/core/parallel.hpp"
#include "model/column_sum.hpp"
#include "model/norm_row.hpp"
#include "model/rms_norm_packs.hpp"

namespace deltaport {
namespace {

/// One row: optional residual addition, reciprocal root, scaled output.
template <class T>
struct NormRow {
  using R = Accumulate<T>;
  std::int64_t size;
  R eps;
  const T* x;
  const T* delta;  // nullptr: no residual
  const T* weight;
  T* sum;  // written only with delta
  T* y;
  R* rstd;  // nullptr in evaluation

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t row = team.league_rank();
    const T* in = x + row * size;
    if (delta != nullptr) {
      const T* d = delta + row * size;
      T* s = sum + row * size;
      row_for(team, size, [=](const std::int64_t i) { s[i] = static_cast<T>(widen(in[i]) + widen(d[i])); });
      in = s;
    }
    const R scale = reciprocal_rms<R>(team, size, in, eps);
    T* out = y + row * size;
    const T* w = weight;
    row_for(team, size, [=](const std::int64_t i) {
      out[i] = static_cast<T>(static_cast<R>(in[i]) * scale * (R(1) + static_cast<R>(w[i])));
    });
    R* saved = rstd;
    if (saved != nullptr) Kokkos::single(Kokkos::PerThread(team), [=]() { saved[row] = scale; });
  }
};

/// A block of rows: dx of each, and the block's share of dw.
template <class T>
struct NormBackwardBlock {
  using R = Accumulate<T>;
  std::int64_t rows, size;
  const T* x;
  const R* rstd;
  const T* weight;
  const T* dy;
  const T* d_residual;  // nullptr: no residual path
  T* dx;
  R* partial;  // [blocks, size]

  DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(const TeamMember& team) const {
    const std::int64_t begin = static_cast<std::int64_t>(team.league_rank()) * gradient_block_rows;
    const std::int64_t end = begin + gradient_block_rows < rows ? begin + gradient_block_rows : rows;
    R* share = partial + team.league_rank() * size;
    row_for(team, size, [=](const std::int64_t i) { share[i] = R(0); });
    for (std::int64_t row = begin; row < end; ++row)
      norm_row_backward<R>(team, size, x + row * size, rstd[row], weight, dy + row * size,
                           d_residual == nullptr ? nullptr : d_residual + row * size, dx + row * size, share);
  }
};

template <class T>
struct AddInPlace {
  T* x;
  const T* delta;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    x[i] = static_cast<T>(widen(x[i]) + widen(delta[i]));
  }
};

}  // namespace

template <class T>
RmsNorm<T>::RmsNorm(ParameterSet<T>& parameters, const std::string& prefix, std::int64_t size, double eps)
    : size_(size), eps_(eps), prefix_(prefix) {
  DELTAPORT_VALIDATE(size > 0, ConfigError, prefix, ": a norm needs a positive size, got ", size);
  DELTAPORT_VALIDATE(eps > 0, ConfigError, prefix, ": the norm's epsilon must be positive, got ", eps);
  weight_ = {&parameters, parameters.declare(prefix + ".weight", Shape{size}, false, {})};
}

template <class T>
typename RmsNorm<T>::Residual RmsNorm<T>::run(Context& context, const Tensor<T>& x,
                                              const Tensor<T>& delta) const {
  using R = Accumulate<T>;
  WorkScope scope(context.runtime, Work::elementwise, "deltaport: rms_norm forward");
  DELTAPORT_VALIDATE(x.rank() == 2 && x.extent(1) == size_, ShapeError, prefix_, ": x must be [rows, ", size_,
                     "], got ", x.shape().str());
  DELTAPORT_VALIDATE(!delta || delta.shape() == x.shape(), ShapeError, prefix_, ": delta is ",
                     delta.shape().str(), " but x is ", x.shape().str());
  const std::int64_t rows = x.extent(0);
  Residual result;
  result.sum = delta ? context.runtime.template allocate<T>("residual", x.shape()) : x;
  result.normalised = context.runtime.template allocate<T>("rms_norm", x.shape());
  Tensor<R> rstd;
  if (context.training()) rstd = context.runtime.template allocate<R>("rms_norm rstd", Shape{rows});
  const T* const weight = weight_.value().data();
  if (packable(size_, {x.data(), delta.data(), weight, result.sum.data(), result.normalised.data()}))
    for_each_group(context.exec(), "deltaport: rms_norm forward", rows, PackedNormRow<T>::lanes,
                   PackedNormRow<T>{rows, size_, static_cast<R>(eps_), x.data(), delta.data(), weight,
                                    result.sum.data(), result.normalised.data(), rstd.data()});
  else
    for_each_row(context.exec(), "deltaport: rms_norm forward", rows,
                 NormRow<T>{size_, static_cast<R>(eps_), x.data(), delta.data(), weight, result.sum.data(),
                            result.normalised.data(), rstd.data()});
  if (context.training()) {
    context.saved.save(result.sum);
    context.saved.save(rstd);
  }
  return result;
}

template <class T>
Tensor<T> RmsNorm<T>::forward(Context& context, const Tensor<T>& x) const {
  return run(context, x, {}).normalised;
}

template <class T>
typename RmsNorm<T>::Residual RmsNorm<T>::forward_residual(Context& context, const Tensor<T>& x,
                                                           const Tensor<T>& delta) const {
  DELTAPORT_VALIDATE(delta.defined() || x.size() == 0, ShapeError, prefix_, ": delta is missing");
  return run(context, x, delta);
}

template <class T>
Tensor<T> RmsNorm<T>::backward(Context& context, const Tensor<T>& dy, const Tensor<T>& d_residual) const {
  using R = Accumulate<T>;
  WorkScope scope(context.runtime, Work::elementwise, "deltaport: rms_norm backward");
  const Tensor<R> rstd = context.saved.template take<R>();
  const Tensor<T> x = context.saved.template take<T>();
  DELTAPORT_VALIDATE(dy.shape() == x.shape(), ShapeError, prefix_, ": dy is ", dy.shape().str(),
                     " but x was ", x.shape().str());
  DELTAPORT_VALIDATE(!d_residual || d_residual.shape() == x.shape(), ShapeError, prefix_, ": d_residual is ",
                     d_residual.shape().str(), " but x was ", x.shape().str());
  const std::int64_t rows = x.extent(0);
  const std::int64_t blocks = gradient_blocks(rows);
  const Tensor<T> dx = context.runtime.template allocate<T>("rms_norm dx", x.shape());
  const Tensor<R> partial = context.runtime.template allocate<R>("rms_norm dw partial", Shape{blocks, size_});
  const T* const weight = weight_.value().data();
  if (packable(size_, {x.data(), weight, dy.data(), d_residual.data(), dx.data(), partial.data()})) {
    for_each_group(context.exec(), "deltaport: rms_norm backward", rows, PackedNormBackward<T>::lanes,
                   PackedNormBackward<T>{rows, size_, x.data(), rstd.data(), weight, dy.data(),
                                         d_residual.data(), dx.data()});
    const PackedNormWeightShare<T> share{rows, size_, x.data(), rstd.data(), dy.data(), partial.data()};
    for_each_group(context.exec(), "deltaport: rms_norm weight gradient", share.groups(), share.lanes, share);
  } else {
    for_each_row(context.exec(), "deltaport: rms_norm backward", blocks,
                 NormBackwardBlock<T>{rows, size_, x.data(), rstd.data(), weight, dy.data(),
                                      d_residual.data(), dx.data(), partial.data()});
  }
  add_column_sums<R>(context.runtime, blocks, size_, partial.data(), weight_.gradient().data());
  return dx;
}

template <class T>
void add_in_place(Runtime& runtime, const Tensor<T>& x, const Tensor<T>& delta) {
  WorkScope scope(runtime, Work::elementwise, "deltaport: add");
  DELTAPORT_VALIDATE(x.size() == delta.size(), ShapeError, "add_in_place: delta is ", delta.shape().str(),
                     " but x is ", x.shape().str());
  if (packable(x.size(), {x.data(), delta.data()}))
    for_each_index(runtime.compute(), "deltaport: add", x.size() / pack_width,
                   PackedAddInPlace<T>{x.data(), delta.data()});
  else
    for_each_index(runtime.compute(), "deltaport: add", x.size(), AddInPlace<T>{x.data(), delta.data()});
}

template class RmsNorm<bfloat16>;
template class RmsNorm<float>;
template class RmsNorm<double>;
template void add_in_place<bfloat16>(Runtime&, const Tensor<bfloat16>&, const Tensor<bfloat16>&);
template void add_in_place<float>(Runtime&, const Tensor<float>&, const Tensor<float>&);
template void add_in_place<double>(Runtime&, const Tensor<double>&, const Tensor<double>&);

}  // namespace deltaport
