// SPDX-License-Identifier: Apache-2.0
#include "offload/host_lane.hpp"

#include <algorithm>
#include <chrono>

namespace deltaport::offload {

void HostEvent::pass() {
  const std::lock_guard lock(mutex_);
  passed_ = true;
  changed_.notify_all();
}

bool HostEvent::query() const {
  const std::lock_guard lock(mutex_);
  return passed_;
}

void HostEvent::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return passed_; });
}

HostLane::HostLane(LaneHooks hooks) : hooks_(std::move(hooks)), thread_([this] { run(); }) {}

HostLane::~HostLane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

EventPtr HostLane::enqueue(std::vector<EventPtr> after, std::function<void()> work) {
  std::erase(after, nullptr);
  auto done = std::make_shared<HostEvent>();
  const std::lock_guard lock(mutex_);
  tasks_.push_back({std::move(after), std::move(work), done});
  changed_.notify_all();
  return done;
}

void HostLane::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

double HostLane::take_seconds() {
  const std::lock_guard lock(mutex_);
  return std::exchange(seconds_, 0.0);
}

// Called with at least one task there.
HostLane::Task HostLane::next(std::unique_lock<std::mutex>& lock) {
  const auto take = [this](std::size_t i) {
    Task task = std::move(tasks_[i]);
    tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(i));
    return task;
  };
  if (!hooks_.pick) {
    Task task = take(0);
    lock.unlock();
    for (const EventPtr& event : task.after) event->wait();
    lock.lock();
    return task;
  }
  for (;;) {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < tasks_.size(); ++i)
      if (std::ranges::all_of(tasks_[i].after, [](const EventPtr& e) { return e->query(); }))
        ready.push_back(i);
    if (!ready.empty()) return take(ready[hooks_.pick(ready.size())]);
    // Events of other lanes do not wake this one.
    changed_.wait_for(lock, std::chrono::microseconds(50));
  }
}

void HostLane::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    busy_ = true;
    Task task = next(lock);
    lock.unlock();
    if (hooks_.before) hooks_.before();
    const auto start = std::chrono::steady_clock::now();
    task.work();
    const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    lock.lock();
    seconds_ += taken;
    // Under the lock: who waited for the event finds its seconds counted.
    task.done->pass();
    task = {};
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace deltaport::offload
