// SPDX-License-Identifier: Apache-2.0
// An outside program that uses the pinned pool and nothing else of the library.
#include <cstdio>
#include <cstring>

#include "deltaport/offload/pinned_pool.hpp"

int main() {
  using namespace deltaport::offload;
  PinnedPoolOptions options;
  options.slab_bytes = std::size_t{4} << 20;
  PinnedPool pool(make_numa_slab_source({}), options);
  std::byte* data = pool.allocate("activations", 1000000);
  std::memset(data, 1, 1000000);
  const PinnedPoolStats stats = pool.stats();
  std::printf("asked %zu, locked %zu: %s\n", stats.asked, stats.retained, pool.placement().why.c_str());
  pool.release(data);
  return stats.asked == 1000000 && pool.trim() == stats.retained ? 0 : 1;
}
