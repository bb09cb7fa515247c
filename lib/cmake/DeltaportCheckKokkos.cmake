# SPDX-License-Identifier: Apache-2.0
# Says at configure time which Kokkos option is missing, instead of a compiler error later.

list(TRANSFORM Kokkos_DEVICES TOUPPER OUTPUT_VARIABLE deltaport_kokkos_devices)
set(DELTAPORT_ENABLE_CUDA OFF)
if("CUDA" IN_LIST deltaport_kokkos_devices)
  set(DELTAPORT_ENABLE_CUDA ON)
endif()
if(NOT "OPENMP" IN_LIST deltaport_kokkos_devices AND NOT "SERIAL" IN_LIST deltaport_kokkos_devices)
  message(FATAL_ERROR "deltaport needs a Kokkos host backend: build Kokkos with -DKokkos_ENABLE_OPENMP=ON.")
endif()
foreach(other HIP SYCL HPX THREADS)
  if("${other}" IN_LIST deltaport_kokkos_devices)
    message(FATAL_ERROR "deltaport supports Kokkos' OpenMP, Serial and CUDA backends; this Kokkos has ${other}.")
  endif()
endforeach()
