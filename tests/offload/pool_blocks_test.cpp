// SPDX-License-Identifier: Apache-2.0
// What every pool does with blocks: sizes, fit, merging, reuse after events, holds, wrong calls.
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "checkpoint/temp_folder.hpp"
#include "deltaport/core/error.hpp"
#include "offload/pool_kinds.hpp"

namespace deltaport::offload {
namespace {

using deltaport::test::message_of;
using test::Flag;
using test::Pool;

constexpr std::size_t kib = 1024;

TEST_P(Pool, BlocksOfAllSizesAreWritableAlignedAndApart) {
  const auto pool = make();
  const std::vector<std::size_t> sizes{1,    2,         255,     256,         257,     4095,
                                       4097, 16 * kib,  65537,   1024 * kib,  1048577, 10000000,
                                       3,    100000000, 5000000, 16 * kib + 1};
  std::vector<std::pair<std::byte*, std::size_t>> blocks;
  std::size_t asked = 0;
  for (const std::size_t bytes : sizes) {
    std::byte* data = pool->allocate("block", bytes);
    std::fill(data, data + bytes, static_cast<std::byte>(blocks.size()));
    blocks.emplace_back(data, bytes);
    asked += bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0U);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto [data, bytes] = blocks[i];
    EXPECT_TRUE(std::all_of(data, data + bytes, [i](std::byte b) { return b == static_cast<std::byte>(i); }))
        << bytes;
  }
  const PinnedPoolStats stats = pool->stats();
  EXPECT_EQ(stats.asked, asked);
  EXPECT_EQ(stats.blocks, sizes.size());
  const double ratio = static_cast<double>(stats.retained) / static_cast<double>(asked);
  EXPECT_LE(static_cast<double>(stats.retained),
            1.02 * static_cast<double>(asked) + static_cast<double>(slab));
  RecordProperty("locked_over_asked", std::to_string(ratio));
  for (const auto& [data, bytes] : blocks) pool->release(data);
  EXPECT_EQ(pool->stats().in_use, 0U);
}

TEST_P(Pool, EveryAlignmentUpToAPage) {
  for (std::size_t alignment = 1; alignment <= 4096; alignment *= 2) {
    PinnedPoolOptions options = small();
    options.alignment = alignment;
    const auto pool = make(options);
    std::vector<std::byte*> blocks;
    for (const std::size_t bytes : {1, 100, 5000, 100000}) {
      blocks.push_back(pool->allocate("block", bytes));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % alignment, 0U);
    }
    const PinnedPoolStats stats = pool->stats();
    EXPECT_LT(stats.in_use, stats.asked + blocks.size() * alignment);
    for (std::byte* data : blocks) pool->release(data);
  }
}

TEST_P(Pool, ZeroBytesAreNoBlock) {
  const auto pool = make();
  EXPECT_EQ(pool->allocate("nothing", 0), nullptr);
  pool->release(nullptr);
  pool->reserve(0);
  EXPECT_EQ(pool->stats().retained, 0U);
}

TEST_P(Pool, BestFitTakesTheSmallestHoleThatHolds) {
  const auto pool = make();
  pool->reserve(slab);
  std::array<std::byte*, 5> blocks{};
  const std::array<std::size_t, 5> sizes{100 * kib, kib, 50 * kib, kib, 70 * kib};
  for (std::size_t i = 0; i < 5; ++i) blocks[i] = pool->allocate("block", sizes[i]);
  std::byte* fence = pool->allocate("fence", kib);
  for (const int i : {0, 2, 4}) pool->release(blocks[static_cast<std::size_t>(i)]);
  std::byte* forty = pool->allocate("forty", 40 * kib);
  std::byte* sixty = pool->allocate("sixty", 60 * kib);
  std::byte* ninety = pool->allocate("ninety", 90 * kib);
  EXPECT_EQ(forty, blocks[2]);
  EXPECT_EQ(sixty, blocks[4]);
  EXPECT_EQ(ninety, blocks[0]);
  for (std::byte* data : {forty, sixty, ninety, blocks[1], blocks[3], fence}) pool->release(data);
}

TEST_P(Pool, NeighboursMergeInWhateverOrderTheyAreReleased) {
  const auto pool = make();
  pool->reserve(slab);
  std::array<std::size_t, 4> order{};
  std::iota(order.begin(), order.end(), 0U);
  do {
    std::array<std::byte*, 4> quarters{};
    for (auto& data : quarters) data = pool->allocate("quarter", slab / 4);
    for (const std::size_t i : order) pool->release(quarters[i]);
    std::byte* whole = pool->allocate("whole", slab);
    EXPECT_EQ(whole, *std::min_element(quarters.begin(), quarters.end()));
    pool->release(whole);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(pool->stats().misses, 0U);
  EXPECT_EQ(pool->stats().slabs, 1U);
}

TEST_P(Pool, ReuseWaitsForEveryEvent) {
  const auto pool = make();
  const auto copy = std::make_shared<Flag>(), read = std::make_shared<Flag>();
  std::byte* first = pool->allocate("first", slab);
  pool->release(first, {copy, nullptr, read});
  std::byte* second = pool->allocate("second", slab);
  EXPECT_NE(second, first);
  EXPECT_EQ(pool->stats().in_use, 2 * slab);
  EXPECT_EQ(pool->stats().asked, slab);
  copy->pass();
  std::byte* third = pool->allocate("third", slab);
  EXPECT_NE(third, first) << "one of two events has not passed";
  read->pass();
  std::byte* fourth = pool->allocate("fourth", slab);
  EXPECT_EQ(fourth, first);
  EXPECT_EQ(pool->stats().misses, 3U);
  EXPECT_EQ(pool->stats().hits, 1U);
  for (std::byte* data : {second, third, fourth}) pool->release(data);
}

TEST_P(Pool, HeldAddressesStayUntilTheLastHoldIsGone) {
  const auto pool = make();
  std::byte* data = pool->allocate("saved", slab);
  pool->hold(data);
  pool->hold(data);
  EXPECT_EQ(pool->stats().held, slab);
  const auto replay = std::make_shared<Flag>();
  pool->release(data);
  EXPECT_EQ(pool->trim(), 0U);
  data[slab - 1] = std::byte{1};  // a graph still may
  pool->unhold(data);
  std::byte* other = pool->allocate("other", slab);
  EXPECT_NE(other, data);
  pool->hold(data);  // one more graph, over the same address
  pool->unhold(data, {replay});
  pool->unhold(data);
  EXPECT_EQ(pool->stats().held, 0U);
  std::byte* third = pool->allocate("third", slab);
  EXPECT_NE(third, data) << "the last replay has not ended";
  replay->pass();
  std::byte* fourth = pool->allocate("fourth", slab);
  EXPECT_EQ(fourth, data);
  for (std::byte* block : {other, third, fourth}) pool->release(block);
}

TEST_P(Pool, HoldOfALiveBlockChangesNothingForItsOwner) {
  const auto pool = make();
  std::byte* data = pool->allocate("saved", 100);
  pool->hold(data);
  pool->unhold(data);
  data[99] = std::byte{1};
  EXPECT_EQ(pool->stats().blocks, 1U);
  pool->release(data);
  EXPECT_EQ(pool->stats().in_use, 0U);
}

TEST_P(Pool, WrongAddressesAreNamedAndChangeNothing) {
  const auto pool = make();
  const auto event = std::make_shared<Flag>();
  std::byte* data = pool->allocate("layer 3 q", 1000);
  std::byte* waiting = pool->allocate("layer 4 k", 1000);
  std::byte* freed = pool->allocate("freed", 1000);
  std::byte own{};
  const auto says = [&](std::byte* address, const char* text) {
    for (const int call : {0, 1, 2}) {
      const std::string message = message_of<Error>([&] {
        if (call == 0) pool->release(address);
        if (call == 1) pool->hold(address);
        if (call == 2) pool->unhold(address);
      });
      EXPECT_NE(message.find(text), std::string::npos) << call << ": " << message;
    }
  };
  pool->release(waiting, {event});
  pool->release(freed);
  const PinnedPoolStats before = pool->stats();
  says(data + 8, "8 bytes inside of 'layer 3 q'");
  says(waiting, "'layer 4 k'");
  says(freed, "which is free: released before");
  says(&own, "not of this pool");
  EXPECT_NE(message_of<Error>([&] { pool->release(waiting); }).find("double release of 'layer 4 k'"),
            std::string::npos);
  EXPECT_NE(message_of<Error>([&] { pool->unhold(data); }).find("not held"), std::string::npos);
  EXPECT_EQ(pool->stats().in_use, before.in_use);
  EXPECT_EQ(pool->stats().blocks, 1U);
  event->pass();
  pool->release(data);
}

TEST_P(Pool, LiveBlocksAreListedLargestFirst) {
  const auto pool = make();
  std::byte* small_block = pool->allocate("small", 10);
  std::byte* large_block = pool->allocate("large", 20);
  const auto blocks = pool->live_blocks();
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].name, "large");
  EXPECT_EQ(blocks[1].bytes, 10U);
  pool->release(large_block);
  EXPECT_EQ(pool->live_blocks().size(), 1U);
  pool->release(small_block);
}

TEST_P(Pool, BlocksLeftBehindAreReported) {
  std::string report;
  PinnedPoolOptions options = small();
  options.report = [&](const std::string& text) { report = text; };
  std::byte *leaked = nullptr, *held = nullptr;
  {
    const auto pool = make(options);
    leaked = pool->allocate("forgotten", 1000);
    held = pool->allocate("in a graph", 3 * slab);
    pool->hold(held);
    pool->release(held);
    pool->release(pool->allocate("returned", 500));
  }
  EXPECT_EQ(report,
            concat("deltaport: pinned pool destroyed with 2 live blocks (", 1000 + 3 * slab, " bytes, ",
                   3 * slab, " held by graphs): 'in a graph' ", 3 * slab, ", 'forgotten' 1000"));
  leaked[999] = held[3 * slab - 1] = std::byte{1};  // a copy under way harms nobody
  report.clear();
  {
    const auto pool = make(options);
    const auto event = std::make_shared<Flag>();
    pool->release(pool->allocate("waiting", 1000), {event});
    event->pass();
  }
  EXPECT_EQ(report, "");
}

}  // namespace
}  // namespace deltaport::offload
