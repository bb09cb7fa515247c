// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "deltaport/core/runtime.hpp"

namespace deltaport {
namespace {

// Requests with holes: what is released early is asked for again by others.
std::vector<std::byte*> requests(Arena& arena) {
  std::vector<std::byte*> addresses;
  const auto take = [&](std::size_t bytes) {
    auto block = arena.allocate("block", bytes);
    addresses.push_back(block->data());
    return block;
  };
  const auto a = take(1000);
  auto b = take(5000);
  const auto c = take(300);
  b.reset();
  const auto d = take(700), e = take(6000), f = take(256);
  return addresses;
}

TEST(ArenaRegion, ServesTheMeasuredRequestsFromOneBlockOfExactlyTheirSize) {
  Runtime runtime;
  Arena& arena = runtime.arena();
  ArenaRegion region(arena);
  {
    const ArenaRegion::Entered entered(region);
    requests(arena);
  }
  EXPECT_EQ(arena.stats().allocated, 0u);
  // 1024, then 5120 that is reused from its front, then 512, then 6144.
  EXPECT_EQ(region.bytes(), 1024u + 5120u + 512u + 6144u);
  const std::size_t needed = region.bytes();
  region.place(arena.allocate("graphs", needed));
  EXPECT_EQ(arena.stats().allocated, needed);
  std::vector<std::byte*> first, second;
  {
    const ArenaRegion::Entered entered(region);
    first = requests(arena);
  }
  const auto elsewhere = arena.allocate("eager", 5000);
  {
    const ArenaRegion::Entered entered(region);
    second = requests(arena);
  }
  EXPECT_EQ(first, second);
  for (std::byte* address : first) {
    EXPECT_GE(address, region.memory()->data());
    EXPECT_LT(address, region.memory()->data() + region.memory()->bytes());
  }
  const bool apart = elsewhere->data() + 5000 <= region.memory()->data() ||
                     elsewhere->data() >= region.memory()->data() + region.memory()->bytes();
  EXPECT_TRUE(apart);
}

// Other passes are measured in the memory of those that were captured, as far as it reaches.
TEST(ArenaRegion, MeasuresInSpareMemory) {
  Runtime runtime;
  Arena& arena = runtime.arena();
  const auto measured = [&](std::size_t spare_bytes) {
    const auto spare = arena.allocate("graphs", spare_bytes);
    ArenaRegion region(arena, spare);
    const std::size_t before = arena.stats().allocated;
    arena.reset_peak();
    {
      const ArenaRegion::Entered entered(region);
      std::int64_t inside = 0;
      for (std::byte* address : requests(arena))
        inside += address >= spare->data() && address < spare->data() + spare_bytes;
      return std::tuple(region.bytes(), arena.stats().allocated_peak - before, inside);
    }
  };
  const std::size_t needed = 1024u + 5120u + 512u + 6144u;
  EXPECT_EQ(measured(needed), std::tuple(needed, 0u, 6));
  EXPECT_EQ(measured(2 * needed), std::tuple(needed, 0u, 6));
  // The last 6144 bytes, and no more, are elsewhere.
  EXPECT_EQ(measured(needed - 256), std::tuple(needed, 6144u, 5));
  EXPECT_EQ(measured(256), std::tuple(needed, 1024u + 512u + 768u + 6144u + 256u, 0));
}

TEST(ArenaRegion, KnowsItsBlocks) {
  Runtime runtime;
  Arena& arena = runtime.arena();
  const auto outside = arena.allocate("outside", 10);
  ArenaRegion region(arena);
  std::shared_ptr<Storage> measured;
  {
    const ArenaRegion::Entered entered(region);
    measured = arena.allocate("measured", 10);
  }
  EXPECT_TRUE(region.owns(measured));
  EXPECT_FALSE(region.owns(outside));
  EXPECT_FALSE(region.owns(nullptr));
  measured.reset();
  region.place(arena.allocate("graphs", region.bytes()));
  std::shared_ptr<Storage> real;
  {
    const ArenaRegion::Entered entered(region);
    real = arena.allocate("real", 10);
  }
  EXPECT_TRUE(region.owns(real));
}

TEST(ArenaRegion, RefusesMoreThanWasMeasured) {
  Runtime runtime;
  Arena& arena = runtime.arena();
  ArenaRegion region(arena);
  {
    const ArenaRegion::Entered entered(region);
    arena.allocate("small", 1000);
  }
  region.place(arena.allocate("graphs", region.bytes()));
  const ArenaRegion::Entered entered(region);
  const auto fits = arena.allocate("small", 1000);
  try {
    arena.allocate("surprise", 1);
    FAIL() << "accepted";
  } catch (const CaptureError& e) {
    EXPECT_NE(std::string(e.what()).find("'surprise' asks for 256 bytes at 1024 of the 1024"),
              std::string::npos)
        << e.what();
  }
}

TEST(ArenaRegion, DoesNotNestAndIsPlacedOnceWhereItFits) {
  Runtime runtime;
  Arena& arena = runtime.arena();
  const auto memory = arena.allocate("memory", 1024);
  ArenaRegion one(arena), two(arena);
  {
    const ArenaRegion::Entered entered(one);
    EXPECT_THROW(ArenaRegion::Entered{two}, Error);
    EXPECT_THROW(one.place(memory), Error);
    arena.allocate("block", 1025);
  }
  EXPECT_THROW(one.place(memory), Error);
  EXPECT_THROW(one.place(nullptr), Error);
  two.place(memory);
  EXPECT_THROW(two.place(memory), Error);
}

TEST(ArenaRegion, RegionsShareMemoryThatIsNotNeededTwice) {
  Runtime runtime;
  Arena& arena = runtime.arena();
  const auto memory = arena.allocate("memory", 4096);
  ArenaRegion one(arena), two(arena);
  one.place(memory);
  two.place(memory);
  std::byte* first = nullptr;
  {
    const ArenaRegion::Entered entered(one);
    first = arena.allocate("block", 4096)->data();
  }
  const ArenaRegion::Entered entered(two);
  EXPECT_EQ(arena.allocate("block", 4096)->data(), first);
}

TEST(ArenaRegion, ItsBlocksKeepTheMemory) {
  Runtime runtime;
  Arena& arena = runtime.arena();
  std::shared_ptr<Storage> kept;
  {
    ArenaRegion region(arena);
    {
      const ArenaRegion::Entered entered(region);
      arena.allocate("block", 4096);
    }
    region.place(arena.allocate("graphs", region.bytes()));
    const ArenaRegion::Entered entered(region);
    kept = arena.allocate("block", 4096);
  }
  EXPECT_EQ(arena.stats().allocated, 4096u);
  kept.reset();
  EXPECT_EQ(arena.stats().allocated, 0u);
}

}  // namespace
}  // namespace deltaport
