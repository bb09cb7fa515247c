// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#if defined(__SSE2__) && !defined(__CUDA_ARCH__)
#include <xmmintrin.h>
#define DELTAPORT_HAVE_MXCSR
#endif

namespace deltaport::recurrence::portable {

/// Strong gates make denormal numbers, on which x86 hosts are some thirty times slower. While an object of
/// this class lives, the calling thread reads and writes them as zero.
class FlushDenormals {
 public:
  KOKKOS_FUNCTION FlushDenormals() {
#ifdef DELTAPORT_HAVE_MXCSR
    KOKKOS_IF_ON_HOST((kept_ = _mm_getcsr(); _mm_setcsr(kept_ | 0x8040u);))  // FTZ and DAZ
#endif
  }
  KOKKOS_FUNCTION ~FlushDenormals() {
#ifdef DELTAPORT_HAVE_MXCSR
    KOKKOS_IF_ON_HOST((_mm_setcsr(kept_);))
#endif
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  [[maybe_unused]] unsigned kept_ = 0;
};

}  // namespace deltaport::recurrence::portable
