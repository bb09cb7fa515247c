// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "offload/page_calls.hpp"

namespace deltaport::offload {

void touch(void* data, std::size_t bytes) {
  // Large pages make touching and registering several times faster. Only whole ones inside: nothing is added.
  constexpr std::uintptr_t large = 2U << 20;
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + large - 1) / large * large;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / large * large;
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<volatile char*>(data);
  for (std::size_t at = 0; at < bytes; at += page) pages[at] = 0;
}

}  // namespace deltaport::offload
