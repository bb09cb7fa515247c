// SPDX-License-Identifier: Apache-2.0
#include "deltaport/offload/pinned_pool.hpp"

#include "offload/pool_state.hpp"

namespace deltaport::offload {

PinnedPool::PinnedPool(std::unique_ptr<SlabSource> source, PinnedPoolOptions options)
    : state_(std::make_unique<PinnedPoolState>(std::move(source), std::move(options))) {}
PinnedPool::~PinnedPool() = default;

std::byte* PinnedPool::allocate(std::string_view name, std::size_t bytes) {
  return state_->allocate(name, bytes);
}
void PinnedPool::release(std::byte* data, Events after) {
  state_->release(data, std::move(after));
}
void PinnedPool::hold(std::byte* data) {
  state_->hold(data);
}
void PinnedPool::unhold(std::byte* data, Events after) {
  state_->unhold(data, std::move(after));
}
void PinnedPool::reserve(std::size_t bytes) {
  state_->reserve(bytes);
}
std::size_t PinnedPool::whole_pages(std::size_t bytes) const {
  return state_->whole_pages(bytes);
}
std::size_t PinnedPool::trim() {
  return state_->trim();
}
PinnedPoolStats PinnedPool::stats() const {
  return state_->stats();
}
PagePlacement PinnedPool::placement() const {
  return state_->placement();
}
bool PinnedPool::pinned() const {
  return state_->pinned();
}
std::vector<ArenaBlock> PinnedPool::live_blocks() const {
  return state_->live_blocks();
}

}  // namespace deltaport::offload
