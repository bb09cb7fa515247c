// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <ostream>
#include <string>

#include "deltaport/offload/pinned_pool.hpp"
#include "offload/fakes.hpp"
#include "offload/numa_slab_source.hpp"

namespace deltaport::offload::test {

/// Every kind of memory that a pool can stand on goes through the same suite.
struct PoolKind {
  std::string name;
  std::unique_ptr<SlabSource> (*source)();
};

inline std::ostream& operator<<(std::ostream& out, const PoolKind& kind) {
  return out << kind.name;
}

/// This machine, as it is; registered with the driver where the build has one and a device is there.
inline std::unique_ptr<SlabSource> machine_source() {
  return make_numa_slab_source({});
}

/// A container that lets nobody bind memory or look pages up.
inline std::unique_ptr<SlabSource> blocked_source() {
  auto pages = std::make_unique<FakePages>();
  pages->binds = pages->tells = false;
  return std::make_unique<NumaSlabSource>(
      NumaSlabParts{NumaTopology::of_machine(), std::move(pages), std::make_shared<FakeDriver>()},
      NumaSlabOptions{});
}

class Pool : public ::testing::TestWithParam<PoolKind> {
 protected:
  static constexpr std::size_t slab = std::size_t{1} << 20;
  static inline const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

  static std::unique_ptr<PinnedPool> make(PinnedPoolOptions options = small()) {
    return std::make_unique<PinnedPool>(GetParam().source(), std::move(options));
  }
  static PinnedPoolOptions small() {
    PinnedPoolOptions options;
    options.slab_bytes = slab;
    return options;
  }
};

}  // namespace deltaport::offload::test
