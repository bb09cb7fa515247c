// SPDX-License-Identifier: Apache-2.0
// Every order that transfers need is kept when the other side is late.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "offload/saved_layers.hpp"

namespace deltaport::offload {
namespace {

using test::Lane;
using test::SavedLayers;
using test::SimulatedDevice;

struct Late {
  const char* name;
  std::vector<Lane> lanes;
  bool shuffled = false;
};
std::ostream& operator<<(std::ostream& out, const Late& late) {
  return out << late.name;
}

SimulatedDevice::Options device_of(const Late& late) {
  SimulatedDevice::Options device;
  for (const Lane lane : late.lanes)
    device.hooks[static_cast<std::size_t>(lane)].before = [] {
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    };
  if (late.shuffled)
    for (const Lane lane : {Lane::to_host, Lane::to_device})
      device.hooks[static_cast<std::size_t>(lane)].pick =
          [random = std::make_shared<std::mt19937>(static_cast<unsigned>(lane))](std::size_t ready) {
            return static_cast<std::size_t>((*random)()) % ready;
          };
  return device;
}

class Ordering : public ::testing::TestWithParam<std::tuple<Late, int>> {};

TEST_P(Ordering, BackwardSeesWhatForwardSaved) {
  const auto& [late, slots] = GetParam();
  for (const Start start : {Start::at_group, Start::between_layers}) {
    OffloaderOptions options = test::movers(slots);
    options.start = start;
    SavedLayers layers(options, device_of(late));
    layers.passes(3, 8);
    EXPECT_TRUE(layers.right());
    const OffloadStats stats = layers.offloader().take_stats();
    // The warm-up moves all eight; those that backward finds on their way need not come back.
    const std::int64_t planned = 8 - slots;
    EXPECT_EQ(stats.groups, 8 + 2 * planned);
    EXPECT_EQ(stats.transfers.to_host_bytes, stats.groups * static_cast<std::int64_t>(SavedLayers::bytes));
    EXPECT_EQ(stats.transfers.to_device_bytes, 3 * planned * static_cast<std::int64_t>(SavedLayers::bytes));
    EXPECT_EQ(stats.host_in_use, 0);
  }
}

TEST_P(Ordering, GroupsThatAreDroppedOnTheirWayDisturbNobody) {
  const auto& [late, slots] = GetParam();
  SavedLayers layers(test::movers(slots), device_of(late));
  layers.passes(2, 6);
  layers.forward(3);
  layers.saved().clear();  // on their way out; only a race detector sees what reads them too late
  layers.passes(1, 6);
  layers.forward(6);
  layers.backward(6, 2);
  layers.saved().clear();  // and on their way back
  layers.passes(2, 6);
  EXPECT_TRUE(layers.right());
  EXPECT_EQ(layers.offloader().take_stats().host_in_use, 0);
}

TEST_P(Ordering, FewerGroupsMayStayThanThereAreSlots) {
  const auto& [late, slots] = GetParam();
  for (const Start start : {Start::at_group, Start::between_layers}) {
    OffloaderOptions options = test::movers(slots);
    options.rules.keep_last = 1;
    options.start = start;
    SavedLayers layers(options, device_of(late));
    layers.passes(3, 8);
    EXPECT_TRUE(layers.right());
    const OffloadStats stats = layers.offloader().take_stats();
    EXPECT_EQ(stats.useless, 0);
    EXPECT_EQ(layers.offloader().schedule().plan().front().moved_bytes(), SavedLayers::bytes);
    EXPECT_EQ(
        std::ranges::count_if(layers.offloader().schedule().plan(), [](const auto& g) { return g.moves; }),
        7);
  }
}

TEST_P(Ordering, TransfersBetweenLayersCanBeReplayed) {
  const auto& [late, slots] = GetParam();
  OffloaderOptions options = test::movers(slots);
  options.start = Start::between_layers;
  SavedLayers layers(options, device_of(late));
  layers.passes(2, 8);
  layers.captured_pass(8);
  const std::int64_t planned = (8 - slots) * static_cast<std::int64_t>(SavedLayers::bytes);
  layers.offloader().take_stats();
  for (const float shift : {1000.0F, 2000.0F, 0.5F}) {
    layers.replay(shift);
    EXPECT_TRUE(layers.right()) << shift;
    const TransferStats stats = layers.offloader().take_stats().transfers;
    EXPECT_EQ(stats.to_host_bytes, planned);
    EXPECT_EQ(stats.to_device_bytes, planned);
  }
  layers.replay(0.0F);
  layers.passes(1, 8);  // and the offloader goes on
  EXPECT_TRUE(layers.right());
}

INSTANTIATE_TEST_SUITE_P(
    Lanes, Ordering,
    ::testing::Combine(::testing::Values(Late{"none", {}}, Late{"compute", {Lane::compute}},
                                         Late{"to_host", {Lane::to_host}},
                                         Late{"to_device", {Lane::to_device}},
                                         Late{"both", {Lane::to_host, Lane::to_device}},
                                         Late{"shuffled", {}, true},
                                         Late{"late_and_shuffled", {Lane::to_host, Lane::to_device}, true}),
                       ::testing::Values(1, 2, 3)),
    [](const auto& p) {
      return std::string(std::get<0>(p.param).name) + "_slots_" + std::to_string(std::get<1>(p.param));
    });

/// Notes which events each copy waits for.
class NotingQueue : public TransferQueue {
 public:
  struct Flag : Event {
    explicit Flag(const bool& all_passed) : passed(all_passed) {}
    bool query() const override { return passed; }
    void wait() const override { EXPECT_TRUE(passed) << "nobody waits in these tests"; }
    const bool& passed;
  };
  struct Entry {
    Direction direction;
    const std::byte* host;
    std::vector<EventPtr> after;
    EventPtr done;
  };
  std::vector<Entry>& entries;
  bool& passed;
  NotingQueue(std::vector<Entry>& list, bool& flag) : entries(list), passed(flag) {}
  EventPtr do_mark_compute() override { return std::make_shared<Flag>(passed); }
  void do_compute_waits(const EventPtr&, Direction) override {}
  EventPtr do_copy(Direction direction, const std::vector<Copy>& copies,
                   const std::vector<EventPtr>& after) override {
    for (const Copy& c : copies) std::copy(c.from, c.from + c.bytes, c.to);
    const std::byte* host = direction == Direction::to_host ? copies.front().to : copies.front().from;
    entries.push_back({direction, host, after, std::make_shared<Flag>(passed)});
    return entries.back().done;
  }
  TransferStats take_seconds() override { return {}; }
  void drain() noexcept override {}
};

class OrderingOfHostMemory : public ::testing::Test {
 protected:
  void passes(int count) {
    saved_.set_mover(&offloader_);
    for (int pass = 0; pass < count; ++pass) {
      for (int i = 0; i < 4; ++i) {
        saved_.open("scope");
        saved_.save(allocate<float>(arena_, "saved", Shape{256}));
        saved_.commit();
      }
      for (int i = 0; i < 4; ++i) saved_.take<float>();
    }
  }
  std::vector<NotingQueue::Entry> entries_;
  bool passed_ = true;
  Arena arena_{{.slab_bytes = std::size_t{1} << 20}};
  PinnedPool pool_{make_numa_slab_source({}), test::small_slabs()};
  Offloader offloader_{arena_, pool_, std::make_unique<NotingQueue>(entries_, passed_), test::movers(1)};
  SavedTensors saved_;
};

// These two also follow from the compute stream's own order, so that no delay can show them missing.
TEST_F(OrderingOfHostMemory, IsReadAfterItIsWrittenAndWrittenAfterItIsRead) {
  passes(3);
  std::map<const std::byte*, NotingQueue::Entry> last;
  int checked = 0;
  for (const auto& entry : entries_) {
    const auto before = last.find(entry.host);
    if (before != last.end() && before->second.direction != entry.direction) {
      ++checked;
      EXPECT_NE(std::ranges::find(entry.after, before->second.done), entry.after.end());
    }
    last.insert_or_assign(entry.host, entry);
  }
  EXPECT_EQ(checked, 3 * 3 + 2 * 3);
}

TEST_F(OrderingOfHostMemory, IsNotHandedOutWhileACopyIsUnderWay) {
  passed_ = false;
  passes(1);
  // The plan keeps the memory of three groups; that of the fourth is given back, and its copy still writes there.
  EXPECT_EQ(pool_.stats().blocks, 3U);
  EXPECT_EQ(pool_.stats().in_use, 4U * 1024U);
  passed_ = true;
  pool_.release(pool_.allocate("next", 1024));
  EXPECT_EQ(pool_.stats().in_use, 3U * 1024U);
}

}  // namespace
}  // namespace deltaport::offload
