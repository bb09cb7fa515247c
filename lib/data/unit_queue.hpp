// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/text_unit.hpp"
#include "deltaport/data/prepare.hpp"

namespace deltaport {

enum class Side : std::uint8_t { train, valid };

/// Part of a document that lies in one chunk.
struct Piece {
  std::int64_t tokens = 0;
  std::int32_t max_id = -1;
  Side side = Side::train;
  bool ends_document = false;
};

/// Tokens in file form with their documents; the unit of hand-over from reading threads to the writer.
struct Chunk {
  std::vector<std::byte> stored;
  std::vector<Piece> pieces;
  PrepareSummary counts;  // what the reading thread counted meanwhile
};

/// Runs units in several threads and hands their chunks to one consumer in unit order, so the result does not
/// depend on the number of threads. Memory is bounded: chunks wait only up to a budget, and the first
/// unprocessed unit never waits for another one, so there is no deadlock. The consumer sees the first error
/// in unit order.
class UnitQueue {
 public:
  /// Chunks of one unit.
  struct Slot {
    std::deque<Chunk> chunks;
    bool finished = false;
    std::exception_ptr failure;
  };
  /// What a unit's work may do with the queue.
  class Output {
   public:
    Output(UnitQueue& queue, Slot& slot) : queue_(queue), slot_(slot) {}
    /// Blocks while the queue is full.
    void push(Chunk chunk) { queue_.push(slot_, std::move(chunk)); }
    /// Blocks until all units before this one are consumed: from then on this unit is the only one to be past
    /// this call, and may use a lot of memory.
    void wait_for_turn() { queue_.wait_for_turn(slot_); }

   private:
    UnitQueue& queue_;
    Slot& slot_;
  };
  using Work = std::function<void(const TextUnit&, Output&)>;

  UnitQueue(TextUnits& units, int threads, Work work);
  /// Cancels what is still running.
  ~UnitQueue();

  /// The next chunk; false after the last one. Rethrows a unit's error.
  bool next(Chunk& chunk);

 private:
  struct Cancelled {};

  void work();
  std::shared_ptr<Slot> claim(TextUnit& unit);
  void push(Slot& slot, Chunk chunk);
  void wait_for_turn(Slot& slot);
  bool first(const Slot& slot) const { return !slots_.empty() && slots_.front().get() == &slot; }

  TextUnits& units_;
  Work work_;
  std::mutex mutex_;
  std::condition_variable space_;  // for reading threads
  std::condition_variable data_;   // for the consumer
  std::deque<std::shared_ptr<Slot>> slots_;
  std::size_t waiting_bytes_ = 0;
  bool exhausted_ = false;
  bool cancelled_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace deltaport
