// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>  // defines __GLIBC__ where the loader can pick

/// Marks a kernel's operator() whose inner loops should use the widest vectors of the machine it runs on. The
/// compiler makes one copy per instruction set and the loader picks one, so a portable build needs no -march.
/// Everything called inside must be inlined. Empty where the toolchain cannot do it (devices, other compilers
/// and processors) and under sanitizers, whose run-time libraries are not up yet when the loader picks.
///   DELTAPORT_HOST_SIMD KOKKOS_FUNCTION void operator()(std::int64_t i) const { ... }
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__CUDACC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DELTAPORT_HOST_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DELTAPORT_HOST_SIMD
#endif
