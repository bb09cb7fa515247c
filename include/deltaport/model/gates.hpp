// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"
#include "deltaport/model/column_slice.hpp"
#include "deltaport/model/qkv_conv.hpp"

/// From projections to the gates of the recurrences. Log decays, A_log and dt_bias are kept in the
/// accumulation type. Everything is enqueued on the compute stream; weight gradients are sums over blocks of
/// tokens in a fixed order and are ADDED.
namespace deltaport {

template <class T>
struct GdnGates {
  Tensor<Accumulate<T>> g;     ///< [T, HV] = -exp(A_log) softplus(a + dt_bias), <= 0
  Tensor<Accumulate<T>> beta;  ///< [T, HV] = sigmoid(b)
};

/// b and a: HV columns each of T tokens. a_log, dt_bias [HV]. Throws ShapeError naming the argument.
template <class T>
GdnGates<T> gdn_gates_forward(Runtime& runtime, const ColumnSlice<T>& b, const ColumnSlice<T>& a,
                              const Tensor<Accumulate<T>>& a_log, const Tensor<Accumulate<T>>& dt_bias);

/// Writes db and da (HV columns each), adds to da_log and ddt_bias. dg, dbeta hold [T, HV] elements.
template <class T>
void gdn_gates_backward(Runtime& runtime, const ColumnSlice<T>& b, const ColumnSlice<T>& a,
                        const Tensor<Accumulate<T>>& a_log, const Tensor<Accumulate<T>>& dt_bias,
                        const Tensor<Accumulate<T>>& dg, const Tensor<Accumulate<T>>& dbeta,
                        const ColumnSlice<T>& db, const ColumnSlice<T>& da,
                        const Tensor<Accumulate<T>>& da_log, const Tensor<Accumulate<T>>& ddt_bias);

template <class T>
struct Gdn2Gates {
  Tensor<Accumulate<T>> g;  ///< [T, H, K] = -exp(A_log[key head]) softplus(f + dt_bias[channel]), <= 0
  Tensor<T> b;              ///< [T, H, K] erase gate = sigmoid(b)
  Tensor<T> w;              ///< [T, HV, V] write gate = sigmoid(w)
};

/// Megatron's form: every gate has a full-rank projection. f, b: H K columns, w: HV V columns of T tokens.
/// a_log [H], dt_bias [H K]. g and b have key heads: value heads of a group share them.
template <class T>
Gdn2Gates<T> gdn2_gates_forward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& f,
                                const ColumnSlice<T>& b, const ColumnSlice<T>& w,
                                const Tensor<Accumulate<T>>& a_log, const Tensor<Accumulate<T>>& dt_bias);

/// Gradients of the gates, as gdn2_backward returns them.
template <class T>
struct Gdn2GateGradients {
  Tensor<Accumulate<T>> dg;  ///< [T, H, K]
  Tensor<T> db;              ///< [T, H, K]
  Tensor<T> dw;              ///< [T, HV, V]
};

/// Writes df, db and dw into the columns of the projections' gradient, adds to da_log and ddt_bias. `b` and
/// `w` are the gates that forward returned; f its projection.
template <class T>
void gdn2_gates_backward(Runtime& runtime, const QkvShape& shape, const ColumnSlice<T>& f, const Tensor<T>& b,
                         const Tensor<T>& w, const Tensor<Accumulate<T>>& a_log,
                         const Tensor<Accumulate<T>>& dt_bias, const Gdn2GateGradients<T>& gradients,
                         const ColumnSlice<T>& df, const ColumnSlice<T>& db, const ColumnSlice<T>& dw,
                         const Tensor<Accumulate<T>>& da_log, const Tensor<Accumulate<T>>& ddt_bias);

}  // namespace deltaport
