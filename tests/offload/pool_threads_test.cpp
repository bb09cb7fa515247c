// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <random>
#include <thread>

#include "deltaport/core/error.hpp"
#include "offload/pool_kinds.hpp"

namespace deltaport::offload {
namespace {

using test::Flag;
using test::Pool;

/// Blocks of one thread: written whole, looked at again later, returned in one of four ways.
class Worker {
 public:
  Worker(PinnedPool& pool, int number)
      : pool_(pool), mark_(static_cast<std::byte>(number + 1)), random_(number) {}

  void run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      take();
      if (blocks_.size() > 6) put_back(random_() % blocks_.size());
      if (round % 64 == 0) pool_.trim();
      if (round % 16 == 0) pass_all();
      (void)pool_.stats();
    }
    while (!blocks_.empty()) put_back(0);
    pass_all();
  }
  bool intact() const { return intact_; }

 private:
  struct Held {
    std::byte* data;
    std::size_t bytes;
  };

  void take() {
    const std::size_t bytes = 1 + random_() % (random_() % 8 == 0 ? 200000 : 5000);
    std::byte* data = pool_.allocate("block", bytes);
    std::fill(data, data + bytes, mark_);
    blocks_.push_back({data, bytes});
  }

  void put_back(std::size_t which) {
    const Held block = blocks_[which];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(which));
    intact_ &= is_mine(block);
    switch (random_() % 4) {
      case 0:
        pool_.release(block.data);
        break;
      case 1:  // a device reads it a while longer
        events_.push_back(std::make_shared<Flag>());
        reading_.push_back(block);
        pool_.release(block.data, {events_.back()});
        break;
      case 2:  // a graph holds it longer than its owner
        pool_.hold(block.data);
        pool_.release(block.data);
        intact_ &= is_mine(block);
        pool_.unhold(block.data);
        break;
      default:
        pool_.hold(block.data);
        pool_.unhold(block.data);
        pool_.release(block.data);
    }
  }

  void pass_all() {
    for (const Held& block : reading_) intact_ &= is_mine(block);
    for (const auto& event : events_) event->pass();
    events_.clear();
    reading_.clear();
  }

  bool is_mine(const Held& block) const {
    return std::all_of(block.data, block.data + block.bytes, [this](std::byte b) { return b == mark_; });
  }

  PinnedPool& pool_;
  std::byte mark_;
  std::mt19937 random_;
  std::vector<Held> blocks_, reading_;
  std::vector<std::shared_ptr<Flag>> events_;
  bool intact_ = true;
};

TEST_P(Pool, EightThreadsNeverSeeEachOthersBytes) {
  const auto pool = make();
  std::vector<Worker> workers;
  for (int i = 0; i < 8; ++i) workers.emplace_back(*pool, i);
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&worker] { worker.run(1000); });
  for (std::thread& thread : threads) thread.join();
  for (const Worker& worker : workers) EXPECT_TRUE(worker.intact());
  pool->trim();
  const PinnedPoolStats stats = pool->stats();
  EXPECT_EQ(stats.in_use, 0U);
  EXPECT_EQ(stats.asked, 0U);
  EXPECT_EQ(stats.held, 0U);
  EXPECT_EQ(stats.retained, 0U);
  EXPECT_EQ(stats.hits + stats.misses, 8U * 1000U);
}

TEST_P(Pool, ThreadsAtTheBudgetWaitForEachOthersReleases) {
  PinnedPoolOptions options = small();
  options.budget_bytes = 4 * slab;
  const auto pool = make(options);
  std::vector<std::shared_ptr<Flag>> events(4);
  for (auto& event : events) {
    event = std::make_shared<Flag>();
    pool->release(pool->allocate("sent", slab), {event});
  }
  std::vector<std::byte*> got(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { got[i] = pool->allocate("next", slab); });
  for (const auto& event : events) event->pass();
  for (std::thread& thread : threads) thread.join();
  std::sort(got.begin(), got.end());
  EXPECT_EQ(std::adjacent_find(got.begin(), got.end()), got.end());
  for (std::byte* data : got) pool->release(data);
}

}  // namespace
}  // namespace deltaport::offload
