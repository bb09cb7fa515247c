// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deltaport/core/arena.hpp"
#include "deltaport/core/machine.hpp"
#include "deltaport/offload/event.hpp"
#include "deltaport/offload/slab_source.hpp"

namespace deltaport::offload {

struct PinnedPoolOptions {
  /// Size of the slabs that small blocks share. Blocks larger than a 64th of it get slabs of their own size.
  std::size_t slab_bytes = std::size_t{256} << 20;
  /// Blocks start at multiples of it and are rounded up to it; a power of two, at most a page.
  std::size_t alignment = 256;
  /// Most bytes of slabs at any time; 0: nine tenths of what control group and nodes leave when the pool is made.
  /// Ranks that share a machine must divide it among themselves.
  std::size_t budget_bytes = 0;
  /// Pools, also of other processes, that share what is left: divides the budget that 0 stands for.
  std::size_t sharers = 1;
  CgroupFiles cgroup;
  /// Is told of blocks that are still live when the pool goes; standard error if empty. Must not throw.
  std::function<void(const std::string&)> report;
};

/// All figures in bytes, but counts.
struct PinnedPoolStats {
  std::size_t asked = 0;       ///< blocks not yet released, as they were asked for
  std::size_t asked_peak = 0;  ///< most of that at any time
  std::size_t in_use = 0;  ///< what nobody else can get: blocks live, held or waiting for events, rounded up
  std::size_t in_use_peak = 0;    ///< most of that at any time
  std::size_t held = 0;           ///< of in_use, what graphs hold
  std::size_t retained = 0;       ///< slabs, used or not: the locked bytes
  std::size_t retained_peak = 0;  ///< most of that at any time
  std::size_t budget = 0;
  std::size_t slabs = 0;   ///< count
  std::size_t blocks = 0;  ///< count of blocks not yet released
  std::size_t hits = 0;    ///< allocations served from what was retained
  std::size_t misses = 0;  ///< allocations that needed a slab; reserve() counts as neither
};

class PinnedPoolState;

/// Host memory near a device, for copies from and to it: best fit over large slabs, merged when free. Blocks are named.
/// Nothing is rounded to powers of two: slabs take at most 1.02 times the most bytes that were ever asked for, plus
/// `slab_bytes`. (That is so for `slab_bytes` of 16 MiB and more, for blocks that are large against `alignment`, and
/// unless live blocks cut free memory into pieces.) Thread-safe; a call that needs a slab keeps the others waiting.
class PinnedPool {
 public:
  /// Takes one page to see where the source's memory ends up. Throws ConfigError for wrong options, OutOfMemory when
  /// `budget_bytes` is more than the control group or the nodes leave, and what the source throws.
  explicit PinnedPool(std::unique_ptr<SlabSource> source, PinnedPoolOptions options = {});
  /// Waits for the events of released blocks. Blocks that are live or held are reported, and their slabs stay where
  /// they are until the process ends: a device may still copy to them.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// A block of at least `bytes` bytes, its contents undefined; nullptr for zero bytes. Takes a new slab when nothing
  /// free fits; at the budget, gives unused slabs back first and then waits for events of released blocks. It asks
  /// those events whether they have passed, which devices forbid while a graph is captured: allocate before. Throws
  /// OutOfMemory, naming the block and the largest others.
  std::byte* allocate(std::string_view name, std::size_t bytes);

  /// Ends the caller's ownership. The memory is handed out again when all events have passed and no graph holds it.
  /// nullptr is ignored. Throws Error, and changes nothing, for a block released before, an address inside of a block,
  /// and an address that is not the pool's.
  void release(std::byte* data, std::vector<std::shared_ptr<const Event>> after = {});

  /// The address stays valid and is given to nobody else until the same number of unhold() calls, also after
  /// release(). Throws Error if it is not the start of a live or held block.
  void hold(std::byte* data);
  /// `after`: the last use by whoever held. Throws Error for a block that is not held.
  void unhold(std::byte* data, std::vector<std::shared_ptr<const Event>> after = {});

  /// Makes one stretch of `bytes` free bytes ready, so that later allocations of that sum need no slab. At the budget
  /// as allocate(). Throws OutOfMemory.
  void reserve(std::size_t bytes);
  /// Bytes of the slab that reserve() takes for so many.
  std::size_t whole_pages(std::size_t bytes) const;
  /// Gives slabs without blocks back to the system; returns their bytes.
  std::size_t trim();

  PinnedPoolStats stats() const;
  /// Of all slabs so far.
  PagePlacement placement() const;
  /// Whether slabs are registered with a driver.
  bool pinned() const;
  /// Blocks not yet released, largest first.
  std::vector<ArenaBlock> live_blocks() const;

 private:
  std::unique_ptr<PinnedPoolState> state_;
};

}  // namespace deltaport::offload
