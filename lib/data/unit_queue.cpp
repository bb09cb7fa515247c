// SPDX-License-Identifier: Apache-2.0
#include "data/unit_queue.hpp"

namespace deltaport {
namespace {

constexpr std::size_t max_waiting_bytes = std::size_t{64} << 20;
constexpr std::size_t max_units = 256;          // claimed and not yet consumed
constexpr std::size_t max_chunks_of_first = 4;  // the unit being consumed may always get that far ahead

}  // namespace

UnitQueue::UnitQueue(TextUnits& units, int threads, Work work) : units_(units), work_(std::move(work)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { this->work(); });
}

UnitQueue::~UnitQueue() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  space_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<UnitQueue::Slot> UnitQueue::claim(TextUnit& unit) {
  std::unique_lock lock(mutex_);
  space_.wait(lock, [this] { return cancelled_ || exhausted_ || slots_.size() < max_units; });
  if (cancelled_ || exhausted_) return nullptr;
  auto slot = std::make_shared<Slot>();
  bool found = false;
  try {
    found = units_.next(unit);
  } catch (...) {  // comes up when the consumer gets there
    slot->failure = std::current_exception();
    slot->finished = true;
  }
  if (found || slot->failure) slots_.push_back(slot);
  if (found) return slot;
  exhausted_ = true;
  lock.unlock();
  data_.notify_all();
  space_.notify_all();
  return nullptr;
}

void UnitQueue::work() {
  TextUnit unit;
  while (const auto slot = claim(unit)) {
    std::exception_ptr failure;
    try {
      Output output(*this, *slot);
      work_(unit, output);
    } catch (const Cancelled&) {
      return;
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      slot->failure = failure;
      slot->finished = true;
    }
    data_.notify_all();
  }
}

void UnitQueue::push(Slot& slot, Chunk chunk) {
  std::unique_lock lock(mutex_);
  space_.wait(lock, [&] {
    return cancelled_ ||
           (first(slot) ? slot.chunks.size() < max_chunks_of_first : waiting_bytes_ < max_waiting_bytes);
  });
  if (cancelled_) throw Cancelled();
  waiting_bytes_ += chunk.stored.size();
  slot.chunks.push_back(std::move(chunk));
  lock.unlock();
  data_.notify_all();
}

void UnitQueue::wait_for_turn(Slot& slot) {
  std::unique_lock lock(mutex_);
  space_.wait(lock, [&] { return cancelled_ || first(slot); });
  if (cancelled_) throw Cancelled();
}

bool UnitQueue::next(Chunk& chunk) {
  std::unique_lock lock(mutex_);
  while (true) {
    data_.wait(lock, [this] {
      return slots_.empty() ? exhausted_ : slots_.front()->finished || !slots_.front()->chunks.empty();
    });
    if (slots_.empty()) return false;
    const std::shared_ptr<Slot> slot = slots_.front();
    if (!slot->chunks.empty()) {
      chunk = std::move(slot->chunks.front());
      slot->chunks.pop_front();
      waiting_bytes_ -= chunk.stored.size();
      lock.unlock();
      space_.notify_all();
      return true;
    }
    if (slot->failure) std::rethrow_exception(slot->failure);
    slots_.pop_front();
    space_.notify_all();
  }
}

}  // namespace deltaport
