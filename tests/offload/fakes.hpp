// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <string>

#include "deltaport/offload/event.hpp"
#include "offload/driver.hpp"
#include "offload/page_calls.hpp"

namespace deltaport::offload::test {

/// Passes when told to.
class Flag : public Event {
 public:
  void pass() {
    const std::lock_guard lock(mutex_);
    passed_ = true;
    changed_.notify_all();
  }
  bool query() const override {
    const std::lock_guard lock(mutex_);
    return passed_;
  }
  void wait() const override {
    std::unique_lock lock(mutex_);
    ++waits_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return passed_; });
  }
  /// Returns once somebody waits.
  void wait_for_waiter() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waits_ > 0; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waits_ = 0;
  bool passed_ = false;
};

/// A machine whose pages go where the test says.
class FakePages : public PageCalls {
 public:
  bool binds = true;                          ///< false: as in a container that blocks mbind
  bool tells = true;                          ///< false: as in one that blocks move_pages
  std::optional<std::vector<int>> elsewhere;  ///< pages are there, whatever was asked
  std::size_t limit_bytes = static_cast<std::size_t>(-1);
  std::size_t live_bytes = 0;
  std::vector<int> bound, touched_from;

  void* allocate_on(const std::vector<int>& nodes, std::size_t bytes, std::string& why) override {
    if (!binds) {
      why = "mbind: Operation not permitted";
      return nullptr;
    }
    bound = nodes;
    return allocate_anywhere(bytes);
  }
  void* allocate_anywhere(std::size_t bytes) override {
    if (live_bytes + bytes > limit_bytes) return nullptr;
    live_bytes += bytes;
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  void touch_from(const std::vector<int>& nodes, void* data, std::size_t bytes) override {
    touched_from = nodes;
    touch(data, bytes);
  }
  std::optional<std::vector<int>> locate(const void*, std::size_t, std::string& why) override {
    if (tells) return elsewhere ? *elsewhere : binds ? bound : touched_from;
    why = "move_pages: Operation not permitted";
    return std::nullopt;
  }
  void free(void* data, std::size_t bytes) noexcept override {
    live_bytes -= bytes;
    munmap(data, bytes);
  }
};

/// A driver with one device.
class FakeDriver : public Driver {
 public:
  int node = -1;
  std::string refusal;
  std::set<void*> registered;

  bool present() const override { return true; }
  int numa_node(const std::string&) const override { return node; }
  std::string register_pages(void* data, std::size_t) override {
    if (refusal.empty()) registered.insert(data);
    return refusal;
  }
  void unregister_pages(void* data) noexcept override { registered.erase(data); }
};

}  // namespace deltaport::offload::test
