// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace deltaport::recurrence::cuda {

/// Whether a kernel may be scheduled while the one before it in the stream still runs. Such a kernel calls
/// dependency_wait before it reads what that one wrote.
enum class Start { after_previous, beside_previous };

/// Of the kernel that comes first when nothing is prepared: those behind it read the table of chunks before they wait for
/// each other.
inline Start first_of(const void* prepared) {
  return prepared == nullptr ? Start::beside_previous : Start::after_previous;
}

/// DELTAPORT_CUDA_OVERLAP=0 keeps kernels apart: race checkers take the shared memory of kernels that overlap for one.
inline bool kernels_overlap() {
  static const bool overlap = [] {
    const char* const value = std::getenv("DELTAPORT_CUDA_OVERLAP");
    return value == nullptr || std::strcmp(value, "0") != 0;
  }();
  return overlap;
}

/// Blocks of a team (see Team) among those of neighbouring value tiles: they read the same keys.
inline int team_of_value_tiles(int padded_k, int value_dim) {
  int device = 0, clusters = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device) == cudaSuccess;
  return known && clusters != 0 && padded_k == 128 && (value_dim + 63) / 64 % 2 == 0 ? 2 : 1;
}

/// `cluster` blocks, neighbours in x, see each other's shared memory.
template <class... Parameters, class... Arguments>
cudaError_t launch_clusters(int cluster, void (*kernel)(Parameters...), dim3 grid, int threads,
                            int shared_bytes, Start start, cudaStream_t stream,
                            const Arguments&... arguments) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (start == Start::beside_previous && kernels_overlap()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, Start start,
                   cudaStream_t stream, const Arguments&... arguments) {
  return launch_clusters(1, kernel, grid, threads, shared_bytes, start, stream, arguments...);
}

}  // namespace deltaport::recurrence::cuda
