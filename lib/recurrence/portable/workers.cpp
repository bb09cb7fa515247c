// SPDX-License-Identifier: Apache-2.0
#include "recurrence/portable/workers.hpp"

#ifdef KOKKOS_ENABLE_OPENMP
#include <omp.h>
#endif

namespace deltaport::recurrence::portable {

int host_thread_index() {
#ifdef KOKKOS_ENABLE_OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

std::int64_t most_chunks(const Extents& x, int chunk_size) {
  std::int64_t longest = x.tokens;
  if constexpr (runs_on_host)
    if (x.cu_seqlens != nullptr && host_may_read_inputs()) {
      longest = 1;
      for (std::int64_t n = 0; n < x.sequences; ++n) {
        const Span span = x.span(n);
        longest = std::max(longest, span.end - span.begin);
      }
    }
  return (longest + chunk_size - 1) / chunk_size;
}

}  // namespace deltaport::recurrence::portable
