// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"
#include "deltaport/model/column_slice.hpp"

/// Output norm of the GDN and GDN2 mixers, per value head: y = w (x / sqrt(mean x^2 + eps)) silu(z), the
/// weight not zero-centred (it starts at ones). Weight and statistics in the accumulation type; enqueue-only;
/// no atomics.
namespace deltaport {

template <class T>
struct GatedNormResult {
  Tensor<T> y;                 ///< [T, HV V]
  Tensor<Accumulate<T>> rstd;  ///< [T, HV]
};

/// x [T, HV, V]; z: HV V columns of T tokens; weight [V]. Throws ShapeError naming the argument.
template <class T>
GatedNormResult<T> gated_norm_forward(Runtime& runtime, const Tensor<T>& x, const ColumnSlice<T>& z,
                                      const Tensor<Accumulate<T>>& weight, double eps);

template <class T>
struct GatedNormGradients {
  Tensor<T> dx;  ///< [T, HV, V]
  Tensor<T>
      y;  ///< [T, HV V] the forward's output once more, for the weight gradient of the projection behind it
};

/// Gradients for dy [T, HV V]; writes dz (HV V columns), ADDS to dweight [V]. x, z, rstd are the forward's, and so is
/// `y` when it was kept: then it is not computed again.
template <class T>
GatedNormGradients<T> gated_norm_backward(Runtime& runtime, const Tensor<T>& x, const ColumnSlice<T>& z,
                                          const Tensor<Accumulate<T>>& weight,
                                          const Tensor<Accumulate<T>>& rstd, const Tensor<T>& dy,
                                          const ColumnSlice<T>& dz, const Tensor<Accumulate<T>>& dweight,
                                          const Tensor<T>& y = {});

}  // namespace deltaport
