// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/free_ranges.hpp"
#include "deltaport/offload/pinned_pool.hpp"

namespace deltaport::offload {

using Events = std::vector<std::shared_ptr<const Event>>;

/// The pool behind its lock. A block is live until it is released, then held while graphs hold it, then waits for its
/// events, then is free.
class PinnedPoolState {
 public:
  PinnedPoolState(std::unique_ptr<SlabSource> source, PinnedPoolOptions options);
  ~PinnedPoolState();
  PinnedPoolState(const PinnedPoolState&) = delete;
  PinnedPoolState& operator=(const PinnedPoolState&) = delete;

  std::byte* allocate(std::string_view name, std::size_t bytes);
  void release(std::byte* data, Events after);
  void hold(std::byte* data);
  void unhold(std::byte* data, Events after);
  void reserve(std::size_t bytes);
  std::size_t whole_pages(std::size_t bytes) const;
  std::size_t trim();

  PinnedPoolStats stats() const;
  PagePlacement placement() const;
  bool pinned() const;
  std::vector<ArenaBlock> live_blocks() const;

 private:
  struct Block {
    std::string name;
    std::size_t asked = 0;
    std::size_t bytes = 0;  // rounded up to the alignment
    std::size_t holds = 0;
    bool released = false;
    Events after;
  };
  using Blocks = std::map<std::byte*, Block>;

  std::size_t round_up(std::size_t bytes) const;
  Block& block_at(std::byte* data, const char* action);
  bool is_in_slab(const std::byte* data) const;

  void retire(Blocks::iterator block);
  void reclaim();
  void free_block(Blocks::iterator block);
  bool wait_for_oldest(std::unique_lock<std::mutex>& lock);

  bool add_slab_for(std::size_t bytes);
  bool add_slab(std::size_t bytes);
  void note_placement(const Slab& slab);
  std::size_t give_back_free_slabs();
  std::string largest_blocks() const;
  void report_leaks() const;

  std::unique_ptr<SlabSource> source_;
  PinnedPoolOptions options_;
  mutable std::mutex mutex_;
  PinnedPoolStats stats_;
  PagePlacement placement_;
  bool pinned_ = false;
  std::vector<Slab> slabs_;
  FreeRanges free_;
  Blocks blocks_;                         // all that is not free
  std::list<Blocks::iterator> retiring_;  // wait for events only; oldest first
};

}  // namespace deltaport::offload
