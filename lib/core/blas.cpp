// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/blas.hpp"

#include <Kokkos_Core.hpp>

#ifdef DELTAPORT_HAVE_CBLAS
#include <cblas.h>
#endif

#include <algorithm>
#include <array>

#include "deltaport/core/error.hpp"

namespace deltaport {

std::string blas_advice(std::string_view core, bool has_avx2, bool has_avx512) {
  constexpr std::array<std::string_view, 12> without_avx = {
      "Generic", "Katmai", "Coppermine", "Northwood",  "Prescott", "Banias",
      "Atom",    "Core2",  "Penryn",     "Dunnington", "Nehalem",  "Athlon"};
  if (!has_avx2 || std::ranges::find(without_avx, core) == without_avx.end()) return {};
  return concat(
      "OpenBLAS does not know this processor and took its kernels for ", core,
      ", without AVX, a third as fast: set OPENBLAS_CORETYPE=", has_avx512 ? "SKYLAKEX" : "HASWELL");
}

#ifdef DELTAPORT_HAVE_CBLAS
std::string blas_advice() {
#if defined(__x86_64__) && !defined(KOKKOS_ENABLE_CUDA)
  return blas_advice(openblas_get_corename(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
                     __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"));
#else
  return {};
#endif
}

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
std::string blas_advice() {
  return {};
}

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
