// SPDX-License-Identifier: Apache-2.0
// Blocks: from live over held and waiting to free.
#include "offload/pool_state.hpp"

#include <algorithm>
#include <bit>

#include "deltaport/core/error.hpp"
#include "offload/budget.hpp"

namespace deltaport::offload {

PinnedPoolState::PinnedPoolState(std::unique_ptr<SlabSource> source, PinnedPoolOptions options)
    : source_(std::move(source)), options_(std::move(options)) {
  DELTAPORT_VALIDATE(source_ != nullptr, ConfigError, "pinned pool: source is null");
  const std::size_t page = source_->page_bytes();
  DELTAPORT_VALIDATE(std::has_single_bit(options_.alignment) && options_.alignment <= page, ConfigError,
                     "pinned pool: alignment ", options_.alignment, " is no power of two of at most ", page);
  DELTAPORT_VALIDATE(options_.slab_bytes >= page, ConfigError, "pinned pool: slab_bytes ",
                     options_.slab_bytes, " is less than a page, ", page);
  // One page tells whether memory can be bound and looked up here.
  const Slab probe = source_->allocate(page);
  placement_ = probe.placement;
  pinned_ = probe.pinned;
  source_->release(probe);
  DELTAPORT_VALIDATE(options_.sharers >= 1, ConfigError, "pinned pool: sharers must be at least 1");
  stats_.budget = budget_of(options_.budget_bytes, cgroup_memory(options_.cgroup), source_->available_bytes(),
                            placement_);
  if (options_.budget_bytes == 0) stats_.budget /= options_.sharers;
}

std::byte* PinnedPoolState::allocate(std::string_view name, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::size_t rounded = round_up(bytes);
  DELTAPORT_VALIDATE(rounded >= bytes, OutOfMemory, "'", name, "' asks for ", bytes, " bytes: size overflow");
  std::unique_lock lock(mutex_);
  reclaim();
  bool grown = false;
  std::byte* data = free_.take(rounded);
  while (data == nullptr) {
    grown = add_slab_for(rounded);
    if (!grown && !wait_for_oldest(lock))
      throw OutOfMemory(concat("pinned pool: '", name, "' asks for ", rounded, " bytes: ", stats_.in_use,
                               " bytes in use, ", stats_.retained, " in slabs, budget ", stats_.budget,
                               "; largest blocks: ", largest_blocks(),
                               ". Raise the budget or keep more tensors on the device"));
    data = free_.take(rounded);
  }
  ++(grown ? stats_.misses : stats_.hits);
  blocks_.emplace(data, Block{std::string(name), bytes, rounded, 0, false, {}});
  ++stats_.blocks;
  stats_.asked += bytes;
  stats_.asked_peak = std::max(stats_.asked_peak, stats_.asked);
  stats_.in_use += rounded;
  stats_.in_use_peak = std::max(stats_.in_use_peak, stats_.in_use);
  return data;
}

void PinnedPoolState::release(std::byte* data, Events after) {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  Block& block = block_at(data, "release");
  DELTAPORT_VALIDATE(!block.released, Error, "pinned pool: double release of '", block.name, "', ",
                     block.asked, " bytes");
  block.released = true;
  block.after.insert(block.after.end(), after.begin(), after.end());
  --stats_.blocks;
  stats_.asked -= block.asked;
  if (block.holds == 0) retire(blocks_.find(data));
}

void PinnedPoolState::hold(std::byte* data) {
  const std::lock_guard lock(mutex_);
  Block& block = block_at(data, "hold");
  DELTAPORT_VALIDATE(!block.released || block.holds > 0, Error, "pinned pool: hold of '", block.name,
                     "', which was released");
  if (block.holds++ == 0) stats_.held += block.bytes;
}

void PinnedPoolState::unhold(std::byte* data, Events after) {
  const std::lock_guard lock(mutex_);
  Block& block = block_at(data, "unhold");
  DELTAPORT_VALIDATE(block.holds > 0, Error, "pinned pool: unhold of '", block.name, "', which is not held");
  block.after.insert(block.after.end(), after.begin(), after.end());
  if (--block.holds > 0) return;
  stats_.held -= block.bytes;
  if (block.released) retire(blocks_.find(data));
}

std::size_t PinnedPoolState::round_up(std::size_t bytes) const {
  return (bytes + options_.alignment - 1) / options_.alignment * options_.alignment;
}

PinnedPoolState::Block& PinnedPoolState::block_at(std::byte* data, const char* action) {
  auto after = blocks_.upper_bound(data);
  if (after != blocks_.begin()) {
    auto& [begin, block] = *std::prev(after);
    if (begin == data) return block;
    DELTAPORT_VALIDATE(data >= begin + block.bytes, Error, "pinned pool: ", action, " of an address ",
                       data - begin, " bytes inside of '", block.name, "'");
  }
  DELTAPORT_VALIDATE(!is_in_slab(data), Error, "pinned pool: ", action, " of ", static_cast<void*>(data),
                     ", which is free: released before, or never given out");
  throw Error(
      concat("pinned pool: ", action, " of ", static_cast<void*>(data), ", which is not of this pool"));
}

bool PinnedPoolState::is_in_slab(const std::byte* data) const {
  return std::any_of(slabs_.begin(), slabs_.end(),
                     [&](const Slab& s) { return data >= s.data && data < s.data + s.bytes; });
}

void PinnedPoolState::retire(Blocks::iterator block) {
  std::erase(block->second.after, nullptr);
  if (block->second.after.empty())
    free_block(block);
  else
    retiring_.push_back(block);
}

void PinnedPoolState::reclaim() {
  for (auto entry = retiring_.begin(); entry != retiring_.end();) {
    const Events& after = (*entry)->second.after;
    const bool passed =
        std::all_of(after.begin(), after.end(), [](const auto& event) { return event->query(); });
    if (passed) free_block(*entry);
    entry = passed ? retiring_.erase(entry) : std::next(entry);
  }
}

void PinnedPoolState::free_block(Blocks::iterator block) {
  stats_.in_use -= block->second.bytes;
  free_.give(block->first, block->second.bytes);
  blocks_.erase(block);
}

/// False when no block waits. The lock is open meanwhile, so afterwards everything may be different.
bool PinnedPoolState::wait_for_oldest(std::unique_lock<std::mutex>& lock) {
  if (retiring_.empty()) return false;
  const Events after = retiring_.front()->second.after;
  lock.unlock();
  for (const auto& event : after) event->wait();
  lock.lock();
  reclaim();
  return true;
}

}  // namespace deltaport::offload
