// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "deltaport/core/tensor.hpp"

namespace deltaport::train {

/// Index of the first element whose bits differ between two tensors of one size, -1 for none. Compares where the
/// tensors are; waits for `exec` alone. T is bfloat16, float or double.
template <class T>
std::int64_t first_difference(const ExecutionSpace& exec, const Tensor<T>& a, const Tensor<T>& b);

}  // namespace deltaport::train
