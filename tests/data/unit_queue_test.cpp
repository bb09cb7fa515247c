// SPDX-License-Identifier: Apache-2.0
#include "data/unit_queue.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "data/scratch.hpp"

namespace deltaport::test {
namespace {

/// Units are files named by number; what the work does with them is up to the test.
class UnitQueueTest : public ::testing::Test {
 protected:
  TextUnits units(int count) const {
    std::vector<std::string> inputs;
    for (int i = 0; i < count; ++i) inputs.push_back(scratch_.write(std::to_string(i), ""));
    return TextUnits(CorpusWalker(inputs, {"*"}));
  }
  static int number_of(const TextUnit& unit) {
    return std::stoi(unit.file.path.substr(unit.file.path.rfind('/') + 1));
  }
  static Chunk chunk_of(int number, std::size_t bytes = 1) {
    Chunk chunk;
    chunk.stored.resize(bytes);
    chunk.counts.files = number;
    return chunk;
  }
  Scratch scratch_;
};

TEST_F(UnitQueueTest, ChunksComeInUnitOrder) {
  for (const int threads : {1, 2, 5}) {
    TextUnits all = units(300);
    UnitQueue queue(all, threads, [](const TextUnit& unit, UnitQueue::Output& output) {
      for (int i = 0; i < number_of(unit) % 7; ++i) output.push(chunk_of(number_of(unit) * 10 + i));
    });
    std::vector<int> seen, expected;
    for (Chunk chunk; queue.next(chunk);) seen.push_back(static_cast<int>(chunk.counts.files));
    for (int n = 0; n < 300; ++n)
      for (int i = 0; i < n % 7; ++i) expected.push_back(n * 10 + i);
    EXPECT_EQ(seen, expected);
  }
}

TEST_F(UnitQueueTest, FullQueuesDoNotDeadlock) {
  TextUnits all = units(12);
  std::atomic<int> alone{0};
  UnitQueue queue(all, 4, [&](const TextUnit& unit, UnitQueue::Output& output) {
    for (int i = 0; i < 12; ++i)
      output.push(chunk_of(number_of(unit), std::size_t{4} << 20));  // 576 MiB in all
    output.wait_for_turn();
    EXPECT_EQ(++alone, 1);
    for (int i = 0; i < 3; ++i) output.push(chunk_of(number_of(unit)));
    --alone;
  });
  int chunks = 0;
  for (Chunk chunk; queue.next(chunk); ++chunks) EXPECT_EQ(chunk.counts.files, chunks / 15);
  EXPECT_EQ(chunks, 180);
}

TEST_F(UnitQueueTest, AnErrorComesInItsPlace) {
  TextUnits all = units(50);
  UnitQueue queue(all, 4, [](const TextUnit& unit, UnitQueue::Output& output) {
    if (number_of(unit) >= 20) throw std::runtime_error(std::to_string(number_of(unit)));
    output.push(chunk_of(number_of(unit)));
  });
  Chunk chunk;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(queue.next(chunk));
  try {
    queue.next(chunk);
    FAIL() << "no error";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "20");
  }
}

TEST_F(UnitQueueTest, CanBeAbandoned) {
  for (int taken = 0; taken < 4; ++taken) {
    TextUnits all = units(40);
    UnitQueue queue(all, 3, [](const TextUnit& unit, UnitQueue::Output& output) {
      for (int i = 0; i < 10; ++i) output.push(chunk_of(number_of(unit), std::size_t{2} << 20));
      output.wait_for_turn();
    });
    Chunk chunk;
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(queue.next(chunk));
  }
}

}  // namespace
}  // namespace deltaport::test
