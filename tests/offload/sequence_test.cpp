// SPDX-License-Identifier: Apache-2.0
// What is asked of the transfer queue between layers, call by call: what waits too early or too late gives the right bits
// all the same.
#include <gtest/gtest.h>

#include <algorithm>

#include "deltaport/offload/offloader.hpp"
#include "offload/movers.hpp"

namespace deltaport::offload {
namespace {

using Script = std::vector<std::string>;

class ScriptQueue : public TransferQueue {
 public:
  explicit ScriptQueue(Script& script) : script_(script) {}
  void drain() noexcept override {}

 protected:
  struct Passed : Event {
    bool query() const override { return true; }
    void wait() const override {}
  };
  EventPtr do_mark_compute() override { return nullptr; }
  void do_compute_waits(const EventPtr&, Direction of) override {
    script_.emplace_back(of == Direction::to_host ? "wait out" : "wait in");
  }
  EventPtr do_copy(Direction direction, const std::vector<Copy>& copies,
                   const std::vector<EventPtr>&) override {
    for (const Copy& c : copies) std::copy(c.from, c.from + c.bytes, c.to);
    script_.emplace_back(direction == Direction::to_host ? "out" : "in");
    return std::make_shared<Passed>();
  }
  TransferStats take_seconds() override { return {}; }

 private:
  Script& script_;
};

/// The calls of a pass after the warm-up, over layers that save a group or do not.
Script calls(OffloaderOptions options, const std::vector<bool>& saves) {
  options.start = Start::between_layers;
  Script script;
  Arena arena({.slab_bytes = std::size_t{1} << 20});
  PinnedPool pool(make_numa_slab_source({}), test::small_slabs());
  Offloader offloader(arena, pool, std::make_unique<ScriptQueue>(script), options);
  SavedTensors saved;
  saved.set_mover(&offloader);
  for (int pass = 0; pass < 3; ++pass) {
    script.clear();
    for (std::size_t i = 0; i < saves.size(); ++i) {
      script.push_back(concat("forward ", i));
      if (saves[i]) {
        saved.open("scope");
        saved.save(allocate<float>(arena, "saved", Shape{1024}));
        saved.commit();
      }
      offloader.flush();
    }
    for (std::size_t i = saves.size(); i-- > 0;) {
      script.push_back(concat("backward ", i));
      offloader.prepare();
      if (saves[i]) saved.take<float>();
    }
  }
  return script;
}

TEST(OffloadSequence, EveryGroupHasALayersTimeToLeaveAndToArrive) {
  EXPECT_EQ(calls(test::movers(1), {true, true, true}),
            (Script{"forward 0", "out", "forward 1", "out", "wait out", "forward 2", "wait out",  //
                    "backward 2", "in", "backward 1", "in", "wait in", "backward 0", "wait in"}));
}

// Layers of another kind in between give more time; backward through them waits for nothing.
TEST(OffloadSequence, LayersThatSaveNothingAreNotWaitedIn) {
  EXPECT_EQ(
      calls(test::movers(1), {true, true, false, true}),
      (Script{"forward 0", "out", "forward 1", "out", "wait out", "forward 2", "forward 3", "wait out",
              "backward 3", "in", "backward 2", "backward 1", "in", "wait in", "backward 0", "wait in"}));
  EXPECT_EQ(calls(test::movers(1), {false, true, true, false}),
            (Script{"forward 0", "forward 1", "out", "forward 2", "wait out", "forward 3",  //
                    "backward 3", "backward 2", "in", "backward 1", "wait in", "backward 0"}));
}

// More slots than groups that stay: the copies under way at forward's end have the loss to end in.
TEST(OffloadSequence, WhatIsStillLeavingIsFreedBeforeTheFirstBackward) {
  OffloaderOptions options = test::movers(3);
  options.rules.keep_last = 1;
  EXPECT_EQ(calls(options, {true, true, true, true, true}),
            (Script{"forward 0",  "out",      "forward 1", "out",        "forward 2", "out",
                    "forward 3",  "out",      "wait out",  "forward 4",  "wait out",  //
                    "backward 4", "wait out", "wait out",  "in",                      //
                    "backward 3", "in",       "wait in",   "backward 2", "in",        "wait in",
                    "backward 1", "in",       "wait in",   "backward 0", "wait in"}));
}

}  // namespace
}  // namespace deltaport::offload
