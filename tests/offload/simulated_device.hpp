// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <set>
#include <utility>

#include "offload/host_lane.hpp"

namespace deltaport::offload::test {

enum class Lane { compute, to_host, to_device };

/// Who waits, and for whom.
using Edge = std::pair<Lane, Lane>;

/// A device whose compute stream is a thread as well: like a real one, it lags behind the program. Every lane can be
/// slowed down, and edges between them can be left out.
class SimulatedDevice : public TransferQueue {
 public:
  struct Options {
    std::array<LaneHooks, 3> hooks;
    std::set<Edge> ignored;
  };
  explicit SimulatedDevice(Options options = {})
      : ignored_(std::move(options.ignored)),
        compute_(std::move(options.hooks[0])),
        to_host_(std::move(options.hooks[1])),
        to_device_(std::move(options.hooks[2])) {}

  /// Enqueues a kernel.
  void launch(std::function<void()> kernel) { compute_.enqueue({}, std::move(kernel)); }
  /// Waits for everything.
  void finish() {
    compute_.drain();
    drain();
  }

  EventPtr do_mark_compute() override {
    return tag(Lane::compute, compute_.enqueue({}, [] {}));
  }
  void do_compute_waits(const EventPtr& event, Direction) override {
    compute_.enqueue(kept(Lane::compute, {event}), [] {});
  }
  EventPtr do_copy(Direction direction, const std::vector<Copy>& copies,
                   const std::vector<EventPtr>& after) override {
    const Lane lane = direction == Direction::to_host ? Lane::to_host : Lane::to_device;
    HostLane& thread = lane == Lane::to_host ? to_host_ : to_device_;
    return tag(lane, thread.enqueue(kept(lane, after), [copies] {
      for (const Copy& c : copies) std::copy(c.from, c.from + c.bytes, c.to);
    }));
  }
  TransferStats take_seconds() override { return {}; }
  void drain() noexcept override {
    to_host_.drain();
    to_device_.drain();
  }

 private:
  struct Tagged : Event {
    Tagged(Lane from, EventPtr event) : lane(from), inner(std::move(event)) {}
    bool query() const override { return inner->query(); }
    void wait() const override { inner->wait(); }
    Lane lane;
    EventPtr inner;
  };
  static EventPtr tag(Lane lane, EventPtr event) { return std::make_shared<Tagged>(lane, std::move(event)); }
  std::vector<EventPtr> kept(Lane waiter, std::vector<EventPtr> events) const {
    std::erase_if(events, [&](const EventPtr& e) {
      return e == nullptr || ignored_.contains({waiter, static_cast<const Tagged&>(*e).lane});
    });
    return events;
  }

  std::set<Edge> ignored_;
  HostLane compute_, to_host_, to_device_;
};

}  // namespace deltaport::offload::test
