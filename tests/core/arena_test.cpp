// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/arena.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "deltaport/core/error.hpp"
#include "deltaport/core/runtime.hpp"

namespace deltaport {
namespace {

ArenaOptions small_slabs() {
  return {.slab_bytes = 64 * 1024, .poison = false};
}

TEST(Arena, GivesAlignedDisjointBlocks) {
  Arena arena(small_slabs());
  std::vector<std::shared_ptr<Storage>> blocks;
  for (std::size_t bytes : {1u, 255u, 256u, 257u, 5000u, 70000u})
    blocks.push_back(arena.allocate("block", bytes));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks[i]->data()) % 256, 0u);
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_TRUE(blocks[i]->data() + blocks[i]->bytes() <= blocks[j]->data() ||
                  blocks[j]->data() + blocks[j]->bytes() <= blocks[i]->data());
  }
}

TEST(Arena, CountsLiveBytesRoundedTo256) {
  Arena arena(small_slabs());
  auto a = arena.allocate("a", 1);
  auto b = arena.allocate("b", 300);
  EXPECT_EQ(arena.stats().allocated, 256u + 512u);
  EXPECT_EQ(arena.stats().blocks, 2u);
  a.reset();
  EXPECT_EQ(arena.stats().allocated, 512u);
  EXPECT_EQ(arena.stats().allocated_peak, 768u);
  arena.reset_peak();
  EXPECT_EQ(arena.stats().allocated_peak, 512u);
}

TEST(Arena, SameRequestsGiveSameAddresses) {
  Arena arena(small_slabs());
  auto step = [&arena] {
    std::vector<std::byte*> addresses;
    auto a = arena.allocate("a", 3000);
    auto b = arena.allocate("b", 10000);
    addresses = {a->data(), b->data()};
    a.reset();
    auto c = arena.allocate("c", 2000);
    auto d = arena.allocate("d", 200000);
    addresses.push_back(c->data());
    addresses.push_back(d->data());
    return addresses;
  };
  const auto first = step();
  const auto requests = arena.stats().slab_requests;
  EXPECT_EQ(step(), first);
  EXPECT_EQ(step(), first);
  EXPECT_EQ(arena.stats().slab_requests, requests);
}

TEST(Arena, MergesNeighboursSoThatAWholeSlabComesBack) {
  Arena arena(small_slabs());
  std::vector<std::shared_ptr<Storage>> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(arena.allocate("piece", 1024));
  for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
  for (std::size_t i = 1; i < blocks.size(); i += 2) blocks[i].reset();
  auto whole = arena.allocate("whole", 64 * 1024);
  EXPECT_EQ(arena.stats().slab_requests, 1u);
}

TEST(Arena, TrimGivesBackOnlyEmptySlabs) {
  Arena arena(small_slabs());
  auto keep = arena.allocate("keep", 1000);
  arena.allocate("gone", 100 * 1024).reset();
  EXPECT_EQ(arena.stats().reserved, 64u * 1024 + 100 * 1024);
  EXPECT_EQ(arena.trim(), 100u * 1024);
  EXPECT_EQ(arena.stats().reserved, 64u * 1024);
  EXPECT_EQ(arena.trim(), 0u);
}

TEST(Arena, NamesTheBlocksAtThePeak) {
  Arena arena(small_slabs());
  auto weights = arena.allocate("weights", 4096);
  {
    auto logits = arena.allocate("logits", 8192);
    EXPECT_EQ(arena.peak_blocks().size(), 2u);
  }
  auto later = arena.allocate("later", 512);
  const auto peak = arena.peak_blocks();
  ASSERT_EQ(peak.size(), 2u);
  EXPECT_EQ(peak[0].name, "logits");
  EXPECT_EQ(peak[1].name, "weights");
  EXPECT_EQ(arena.live_blocks()[1].name, "later");
}

TEST(Arena, RefusesWhatCannotBeHadAndSaysWhatIsAlive) {
  Arena arena(small_slabs());
  auto weights = arena.allocate("weights", 4096);
  try {
    arena.allocate("impossible", std::size_t{1} << 60);
    FAIL() << "no exception";
  } catch (const OutOfMemory& e) {
    EXPECT_NE(std::string(e.what()).find("impossible"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("weights 4096"), std::string::npos);
  }
  EXPECT_THROW(arena.allocate("overflow", SIZE_MAX), OutOfMemory);
  EXPECT_EQ(arena.stats().allocated, 4096u);
}

TEST(Arena, StorageOutlivesTheArenaObject) {
  std::shared_ptr<Storage> block;
  {
    Arena arena(small_slabs());
    block = arena.allocate("block", 100);
  }
  EXPECT_NE(block->data(), nullptr);
}

TEST(Arena, PoisonMakesUnwrittenFloatsNaN) {
  RuntimeOptions options;
  options.arena = {.slab_bytes = 1 << 20, .poison = true};
  Runtime runtime(options);
  const auto values = to_vector(runtime.compute(), runtime.allocate<float>("x", Shape{100}));
  for (float value : values) EXPECT_NE(value, value);
}

}  // namespace
}  // namespace deltaport
