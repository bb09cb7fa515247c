// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deltaport {

/// Threads that host matrix products may use; call after Kokkos::initialize. Without OpenBLAS it does
/// nothing: the built-in kernel runs on Kokkos' threads.
void set_blas_threads(int threads);

struct BlasInfo {
  std::string library;    ///< "OpenBLAS 0.3.21 ...", "cuBLAS" or "built-in tile kernel"
  std::string threading;  ///< "OpenMP", "its own threads", "none"; for OpenBLAS only
};
BlasInfo blas_info();

}  // namespace deltaport
