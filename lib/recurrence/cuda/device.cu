// SPDX-License-Identifier: Apache-2.0
#include "recurrence/cuda/device.hpp"

#include <cuda_runtime.h>

namespace deltaport::recurrence::cuda {
namespace {

/// As much as compute capability 9.0 has; the backward pass comes near it. 8.x and 12.x have less.
constexpr int shared_bytes_needed = 227 * 1024;

/// Stands for all kernels: they are compiled for the same architectures.
__global__ void any_kernel() {}

}  // namespace

bool device_runs_kernels() {
  int device = 0, shared_bytes = 0;
  cudaFuncAttributes attributes{};
  const bool runs =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
      shared_bytes >= shared_bytes_needed && cudaFuncGetAttributes(&attributes, any_kernel) == cudaSuccess;
  if (!runs) cudaGetLastError();  // so that nobody else finds it
  return runs;
}

}  // namespace deltaport::recurrence::cuda
