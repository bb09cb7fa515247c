// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/blas.hpp"

#include <Kokkos_Core.hpp>

#ifdef DELTAPORT_HAVE_CBLAS
#include <cblas.h>
#endif

namespace deltaport {

#ifdef DELTAPORT_HAVE_CBLAS
void set_blas_threads(int threads) {
  openblas_set_num_threads(threads);
}

BlasInfo blas_info() {
  const int parallel = openblas_get_parallel();
  std::string library = openblas_get_config();
  library.erase(library.find_last_not_of(' ') + 1);
  return {library, parallel == OPENBLAS_OPENMP   ? "OpenMP"
                   : parallel == OPENBLAS_THREAD ? "its own threads"
                                                 : "none"};
}
#else
void set_blas_threads(int) {}

BlasInfo blas_info() {
#ifdef KOKKOS_ENABLE_CUDA
  return {"cuBLAS", ""};
#else
  return {"built-in tile kernel", ""};
#endif
}
#endif

}  // namespace deltaport
