// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "recurrence/activations.hpp"

namespace deltaport::recurrence {

/// x / sqrt(sum x^2 + 1e-6) over the last dimension of x [B, T, H, K].
template <class T>
Tensor<Plain<T>> l2_normalised(Runtime& runtime, const char* name, const Tensor<T>& x);

/// Gradient of x from that of l2_normalised(x): rstd (dy - (dy.y) y), which is 1000 dy at x = 0. Rows that no
/// sequence covers are zero.
template <class T>
Tensor<T> l2_gradient(Runtime& runtime, const Extents& extents, const char* name, const Tensor<T>& x,
                      const Tensor<Plain<T>>& dy);

}  // namespace deltaport::recurrence
