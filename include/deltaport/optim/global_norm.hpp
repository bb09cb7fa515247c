// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "deltaport/core/runtime.hpp"
#include "deltaport/core/tensor.hpp"

namespace deltaport {

/// Euclidean norm of all elements of `gradients` (any shape) as a tensor double [1]; NaN or infinite exactly
/// when an element is. Enqueue-only: two kernels, no copy to the host. Squares are summed in double, in an
/// order that depends on the element count alone, so the bits are the same from run to run and for any thread
/// count. Takes 8 KiB of scratch and the result from the arena. T is float or double.
template <class T>
Tensor<double> global_norm(Runtime& runtime, const Tensor<T>& gradients);

}  // namespace deltaport
