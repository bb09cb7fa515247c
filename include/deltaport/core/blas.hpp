// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace deltaport {

/// Threads that host matrix products may use; call after Kokkos::initialize. Without OpenBLAS it does
/// nothing: the built-in kernel runs on Kokkos' threads.
void set_blas_threads(int threads);

struct BlasInfo {
  std::string library;    ///< "OpenBLAS 0.3.21 ...", "cuBLAS" or "built-in tile kernel"
  std::string threading;  ///< "OpenMP", "its own threads", "none"; for OpenBLAS only
};
BlasInfo blas_info();

/// What to do where OpenBLAS took kernels without AVX, named `core`, on a processor that has AVX2 or AVX-512: releases older
/// than the processor do not know it and take the oldest kernels, a third as fast. Empty where nothing is to be done.
std::string blas_advice(std::string_view core, bool has_avx2, bool has_avx512);
/// That for the library and the processor of this process. Empty where products do not go through OpenBLAS.
std::string blas_advice();

}  // namespace deltaport
