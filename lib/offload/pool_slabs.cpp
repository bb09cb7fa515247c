// SPDX-License-Identifier: Apache-2.0
// Slabs: when a pool takes them, how large they are, when they go back.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "deltaport/core/error.hpp"
#include "offload/pool_state.hpp"

namespace deltaport::offload {
namespace {

// A block that does not fit leaves at most its own size unused at the end of a shared slab: 1/64 is 1.6 %.
constexpr std::size_t blocks_per_slab = 64;
constexpr double allowed_ratio = 1.02;

}  // namespace

/// Makes room for one block of this size; false when the budget does not allow it.
bool PinnedPoolState::add_slab_for(std::size_t bytes) {
  const bool shared = bytes <= options_.slab_bytes / blocks_per_slab;
  return (shared && add_slab(options_.slab_bytes)) || add_slab(bytes);
}

bool PinnedPoolState::add_slab(std::size_t bytes) {
  const std::size_t whole = whole_pages(bytes);
  if (whole < bytes || whole > stats_.budget) return false;
  // Slabs that fit nothing any more (the shapes changed) go before new ones come.
  const double peak = static_cast<double>(std::max(stats_.in_use_peak, stats_.in_use + bytes));
  const double bound = allowed_ratio * peak + static_cast<double>(options_.slab_bytes);
  if (static_cast<double>(stats_.retained + whole) > bound || stats_.retained + whole > stats_.budget)
    give_back_free_slabs();
  if (stats_.retained + whole > stats_.budget) return false;
  slabs_.reserve(slabs_.size() + 1);  // so that nothing throws once there is a slab
  const Slab slab = source_->allocate(whole);
  slabs_.push_back(slab);
  free_.add_slab(slab.data, slab.bytes);
  note_placement(slab);
  stats_.slabs = slabs_.size();
  stats_.retained += slab.bytes;
  stats_.retained_peak = std::max(stats_.retained_peak, stats_.retained);
  return true;
}

void PinnedPoolState::note_placement(const Slab& slab) {
  std::vector<int> nodes;
  std::set_union(placement_.got.begin(), placement_.got.end(), slab.placement.got.begin(),
                 slab.placement.got.end(), std::back_inserter(nodes));
  placement_.got = nodes;
  // The first slab that is not where it should be says why.
  if (placement_.achieved && !slab.placement.achieved) {
    placement_.achieved = false;
    placement_.why = slab.placement.why;
  }
}

std::size_t PinnedPoolState::give_back_free_slabs() {
  std::size_t bytes = 0;
  std::erase_if(slabs_, [&](const Slab& slab) {
    if (!free_.remove_slab(slab.data, slab.bytes)) return false;
    source_->release(slab);
    bytes += slab.bytes;
    return true;
  });
  stats_.slabs = slabs_.size();
  stats_.retained -= bytes;
  return bytes;
}

void PinnedPoolState::reserve(std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t rounded = round_up(bytes);
  DELTAPORT_VALIDATE(rounded >= bytes, OutOfMemory, "reserve of ", bytes, " bytes: size overflow");
  std::unique_lock lock(mutex_);
  reclaim();
  while (free_.largest() < rounded && !add_slab(rounded))
    DELTAPORT_VALIDATE(wait_for_oldest(lock), OutOfMemory, "pinned pool: reserve of ", rounded,
                       " bytes: ", stats_.retained, " bytes in slabs, budget ", stats_.budget,
                       ". Raise the budget or keep more tensors on the device");
}

std::size_t PinnedPoolState::whole_pages(std::size_t bytes) const {
  const std::size_t page = source_->page_bytes();
  return (bytes + page - 1) / page * page;
}

std::size_t PinnedPoolState::trim() {
  const std::lock_guard lock(mutex_);
  reclaim();
  return give_back_free_slabs();
}

PinnedPoolState::~PinnedPoolState() {
  // Nobody else may call any more; no lock, for events may take their time.
  for (const Blocks::iterator block : retiring_)
    for (const auto& event : block->second.after) event->wait();
  reclaim();
  give_back_free_slabs();
  if (!blocks_.empty()) report_leaks();
}

void PinnedPoolState::report_leaks() const {
  std::size_t bytes = 0;
  for (const auto& [data, block] : blocks_) bytes += block.asked;
  const std::string text = concat("deltaport: pinned pool destroyed with ", blocks_.size(), " live block",
                                  blocks_.size() == 1 ? "" : "s", " (", bytes, " bytes, ", stats_.held,
                                  " held by graphs): ", largest_blocks());
  if (options_.report)
    options_.report(text);
  else
    std::fprintf(stderr, "%s\n", text.c_str());
}

std::string PinnedPoolState::largest_blocks() const {
  std::vector<const Block*> blocks;
  for (const auto& entry : blocks_) blocks.push_back(&entry.second);
  std::stable_sort(blocks.begin(), blocks.end(), [](auto a, auto b) { return a->bytes > b->bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(blocks.size(), 5); ++i)
    text += concat(i ? ", '" : "'", blocks[i]->name, "' ", blocks[i]->asked);
  return text.empty() ? "none" : text;
}

PinnedPoolStats PinnedPoolState::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

PagePlacement PinnedPoolState::placement() const {
  const std::lock_guard lock(mutex_);
  return placement_;
}

bool PinnedPoolState::pinned() const {
  const std::lock_guard lock(mutex_);
  return pinned_;
}

std::vector<ArenaBlock> PinnedPoolState::live_blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<ArenaBlock> blocks;
  for (const auto& [data, block] : blocks_)
    if (!block.released) blocks.push_back({block.name, block.asked});
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return blocks;
}

}  // namespace deltaport::offload
