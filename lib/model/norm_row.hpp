// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/row_sum.hpp"

namespace deltaport {

/// 1 / sqrt(mean(x^2) + eps) of one row.
template <class R, class T>
KOKKOS_FORCEINLINE_FUNCTION R reciprocal_rms(const TeamMember& team, std::int64_t size, const T* x, R eps) {
  const R squares = row_sum<R>(team, size, [=](const std::int64_t i) {
    const R value = static_cast<R>(x[i]);
    return value * value;
  });
  return R(1) / Kokkos::sqrt(squares / static_cast<R>(size) + eps);
}

/// Backward of y = x rstd (1 + w) for one row. With n = x rstd and g = dy (1 + w):
///   dx = extra + rstd (g - n mean(g n)),  share += dy n.
/// `extra` may be null; `dx` may not overlap the other rows. `dy` may be of another type than x.
template <class R, class T, class D>
KOKKOS_FORCEINLINE_FUNCTION void norm_row_backward(const TeamMember& team, std::int64_t size, const T* x,
                                                   R rstd, const T* weight, const D* dy, const T* extra,
                                                   T* dx, R* share) {
  const R dot = row_sum<R>(team, size, [=](const std::int64_t i) {
    return static_cast<R>(dy[i]) * (R(1) + static_cast<R>(weight[i])) * static_cast<R>(x[i]);
  });
  const R slope = dot * rstd * rstd / static_cast<R>(size);
  row_for(team, size,
          [=](const std::int64_t i) { share[i] += static_cast<R>(dy[i]) * (static_cast<R>(x[i]) * rstd); });
  if (extra != nullptr) {
    row_for(team, size, [=](const std::int64_t i) {
      const R g = static_cast<R>(dy[i]) * (R(1) + static_cast<R>(weight[i]));
      dx[i] = static_cast<T>(static_cast<R>(extra[i]) + rstd * (g - static_cast<R>(x[i]) * slope));
    });
  } else {
    row_for(team, size, [=](const std::int64_t i) {
      const R g = static_cast<R>(dy[i]) * (R(1) + static_cast<R>(weight[i]));
      dx[i] = static_cast<T>(rstd * (g - static_cast<R>(x[i]) * slope));
    });
  }
}

}  // namespace deltaport
