# SPDX-License-Identifier: Apache-2.0
# Every outside dependency, found once. What is missing is named here, early and in plain words.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_package(Kokkos 5.0...<6 QUIET)
if(NOT Kokkos_FOUND)
  message(FATAL_ERROR
    "deltaport needs Kokkos 5 (>= 5.0, < 6) and found none.\n"
    "  Debian 12:  apps/quickstart and tests/run install it.\n"
    "  elsewhere:  spack install kokkos@5: +openmp   (CUDA: +cuda cuda_arch=90 +wrapper)\n"
    "  own build:  pass -DKokkos_ROOT=<prefix>.")
endif()
include(DeltaportCheckKokkos)

find_package(Threads REQUIRED)
find_package(yaml-cpp REQUIRED)
if(TARGET yaml-cpp::yaml-cpp)
  set(DELTAPORT_YAML_TARGET yaml-cpp::yaml-cpp)
else() # releases before 0.8 export the plain name
  set(DELTAPORT_YAML_TARGET yaml-cpp)
endif()
find_package(nlohmann_json REQUIRED)
find_path(DELTAPORT_XXHASH_INCLUDE_DIR xxhash.h)
if(NOT DELTAPORT_XXHASH_INCLUDE_DIR)
  message(FATAL_ERROR "deltaport needs the header xxhash.h (Debian: libxxhash-dev, Spack: xxhash).")
endif()
if(DELTAPORT_BUILD_APPS)
  find_package(CLI11 REQUIRED)
endif()
if(DELTAPORT_ENABLE_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
if(DELTAPORT_ENABLE_ZLIB)
  find_package(ZLIB REQUIRED)
endif()
if(DELTAPORT_ENABLE_TOKENIZER)
  find_path(DELTAPORT_PCRE2_INCLUDE_DIR pcre2.h)
  find_library(DELTAPORT_PCRE2_LIBRARY pcre2-8)
  find_path(DELTAPORT_UTF8PROC_INCLUDE_DIR utf8proc.h)
  find_library(DELTAPORT_UTF8PROC_LIBRARY utf8proc)
  if(NOT DELTAPORT_PCRE2_INCLUDE_DIR OR NOT DELTAPORT_PCRE2_LIBRARY OR NOT DELTAPORT_UTF8PROC_INCLUDE_DIR
      OR NOT DELTAPORT_UTF8PROC_LIBRARY)
    message(FATAL_ERROR
      "DELTAPORT_ENABLE_TOKENIZER is ON, but PCRE2 (8 bit) or utf8proc was not found "
      "(Debian: libpcre2-dev libutf8proc-dev, Spack: pcre2 utf8proc). "
      "Set DELTAPORT_ENABLE_TOKENIZER=OFF to do without tokenizer.json; the byte tokenizer remains.")
  endif()
endif()
if(DELTAPORT_ENABLE_HWLOC)
  find_path(DELTAPORT_HWLOC_INCLUDE_DIR hwloc.h)
  find_library(DELTAPORT_HWLOC_LIBRARY hwloc)
  if(NOT DELTAPORT_HWLOC_INCLUDE_DIR OR NOT DELTAPORT_HWLOC_LIBRARY)
    message(FATAL_ERROR "DELTAPORT_ENABLE_HWLOC is ON, but hwloc was not found (Debian: libhwloc-dev).")
  endif()
endif()
if(DELTAPORT_ENABLE_BLAS)
  # The OpenMP build of OpenBLAS shares Kokkos' thread team; it is looked for first.
  find_path(DELTAPORT_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-openmp openblas
    PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE})
  find_library(DELTAPORT_CBLAS_LIBRARY NAMES openblas PATH_SUFFIXES openblas-openmp)
  if(NOT DELTAPORT_CBLAS_INCLUDE_DIR OR NOT DELTAPORT_CBLAS_LIBRARY)
    message(FATAL_ERROR
      "DELTAPORT_ENABLE_BLAS is ON, but OpenBLAS was not found "
      "(Debian: libopenblas-openmp-dev, Spack: openblas threads=openmp). "
      "Set DELTAPORT_ENABLE_BLAS=OFF to use the built-in kernels.")
  endif()
endif()
if(DELTAPORT_ENABLE_CUDA)
  find_package(CUDAToolkit REQUIRED)
  # For the .cu files alone: Kokkos' compiler remains that of C++. What is linked is said by the targets.
  set(CMAKE_CUDA_ARCHITECTURES 80)
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know what nvcc 12 can
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
endif()
set(DELTAPORT_HAVE_CUDNN OFF)
if(DELTAPORT_ENABLE_CUDA AND NOT DELTAPORT_ENABLE_CUDNN STREQUAL "OFF")
  find_path(DELTAPORT_CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDAToolkit_INCLUDE_DIRS} $ENV{CUDNN_ROOT}
    PATH_SUFFIXES include)
  find_library(DELTAPORT_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} $ENV{CUDNN_ROOT}
    PATH_SUFFIXES lib lib64)
  mark_as_advanced(DELTAPORT_CUDNN_INCLUDE_DIR DELTAPORT_CUDNN_LIBRARY)
  if(DELTAPORT_CUDNN_INCLUDE_DIR AND DELTAPORT_CUDNN_LIBRARY)
    set(DELTAPORT_HAVE_CUDNN ON)
  elseif(NOT DELTAPORT_ENABLE_CUDNN STREQUAL "AUTO")
    message(FATAL_ERROR
      "DELTAPORT_ENABLE_CUDNN is ${DELTAPORT_ENABLE_CUDNN}, but cuDNN 9 was not found (Spack: cudnn@9:). "
      "Set CUDNN_ROOT to its prefix, or DELTAPORT_ENABLE_CUDNN=AUTO or OFF.")
  endif()
endif()
if(DELTAPORT_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
