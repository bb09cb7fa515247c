// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "recurrence/cuda/arguments.hpp"

/// Descriptors with which the copy engine of compute capability 9.0 and later moves 64 x 64 tiles.
namespace deltaport::recurrence::cuda {

/// [rows, heads, dim] elements of two bytes in tiles of 64 rows x 64 elements of one head, 128-byte swizzle. What lies
/// outside is read as zero and not written. False when the driver or the device has no such descriptors, or the
/// address is not aligned; nothing is copied with it then.
bool make_tensor_map(CUtensorMap& map, Element element, const void* base, std::int64_t rows, int heads,
                     int dim);

/// Of the tensors that the kernels read and write by tiles.
struct TileMaps {
  CUtensorMap q, k, v, o;
};

}  // namespace deltaport::recurrence::cuda
