// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "deltaport/core/error.hpp"
#include "deltaport/offload/offloader.hpp"

namespace deltaport::offload {

// A layer's groups first, then those of the layer below, which have this layer's backward to arrive.
void Offloader::prepare() {
  if (options_.start == Start::at_group || groups_.empty()) return;
  if (!backward_) end_forward();
  const std::size_t layer = groups_.back().layer;
  const std::size_t next = layer - std::min<std::size_t>(layer, 1);
  for (std::size_t i = groups_.size(); i-- > 0 && groups_[i].layer >= next;)
    if (groups_[i].where == Where::away) fetch(groups_[i]);
  for (std::size_t i = groups_.size(); i-- > 0 && groups_[i].layer == layer;) await(groups_[i]);
}

void Offloader::before_take(const SavedGroup& saved) {
  if (!in_scope(saved.name)) return;
  DELTAPORT_VALIDATE(!groups_.empty(), Error, "offload: group '", saved.name,
                     "' is taken, but was committed to somebody else");
  if (!backward_) end_forward();
  Group& group = groups_.back();
  if (group.position) {
    // First what is needed now, then what is needed next: copies to the device are done in this order.
    if (group.where == Where::away) fetch(group);
    if (options_.start == Start::at_group) {
      const std::size_t position = *group.position;
      const auto ahead = static_cast<std::size_t>(std::max<std::int64_t>(1, options_.rules.slots - 1));
      for (std::size_t next = position; next-- > position - std::min(position, ahead);)
        if (at(next).where == Where::away) fetch(at(next));
    }
    await(group);
    put_back(group, saved);
    at_position_.pop_back();
  }
  groups_.pop_back();
  if (groups_.empty()) end_pass();
}

void Offloader::end_forward() {
  backward_ = true;
  send_unsent();
  if (schedule_.position() > 0) plan_is_new_ = schedule_.end_forward();
}

// The arena's blocks may be in use by what was enqueued before, and the host memory may still be written.
void Offloader::fetch(Group& group) {
  HostMemory& memory = host_[*group.position];
  std::vector<Copy> copies;
  for (Block& block : group.blocks) {
    if (block.storage != nullptr) continue;  // somebody else kept it
    block.storage = arena_.allocate(block.name, block.bytes);
    for (Block::Place& place : block.tensors) place.offset -= block.begin;
    copies.push_back({block.storage->data(), memory.data + block.host_offset, block.bytes});
  }
  group.fetched = memory.read =
      queue_->copy(Direction::to_device, copies, {queue_->mark_compute(), group.copied});
  group.where = Where::arriving;
}

void Offloader::await(Group& group) {
  if (group.where == Where::here) return;
  if (group.where == Where::leaving) {
    // Never left: backward may overwrite it once the copy has read it.
    queue_->compute_waits(group.copied);
    std::erase(leaving_, *group.position);
  } else {
    queue_->compute_waits(group.fetched);
  }
  group.where = Where::here;
  stats_.host_in_use -= copied_bytes(group);
}

void Offloader::put_back(const Group& group, const SavedGroup& saved) const {
  for (const Block& block : group.blocks)
    for (const Block::Place& place : block.tensors) {
      saved.tensors[place.tensor].storage = block.storage;
      saved.tensors[place.tensor].data = block.storage->data() + place.offset;
    }
}

void Offloader::end_pass() {
  backward_ = false;
  layer_ = 0;
  at_position_.clear();
  leaving_.clear();
  unsent_.clear();
  if (!std::exchange(plan_is_new_, false)) return;
  const auto& plan = schedule_.plan();
  for (std::size_t i = 0; i < host_.size(); ++i)
    if (i >= plan.size() || !plan[i].moves) release_host_memory(host_[i]);
  host_.resize(std::min(host_.size(), plan.size()));
  pool_.trim();
  check_plan();
}

void Offloader::check_plan() const {
  std::size_t needed = 0, moving = 0;
  for (const Schedule::Planned& group : schedule_.plan()) {
    needed += group.moved_bytes();
    moving += group.moves ? 1 : 0;
  }
  const std::size_t budget = pool_.stats().budget;
  if (needed <= budget) return;
  const double share = options_.rules.fraction * static_cast<double>(budget) / static_cast<double>(needed);
  throw OutOfMemory(concat(
      "offload: ", moving, " groups need ", needed, " bytes of pinned host memory, the limit is ", budget,
      ". Set offload.fraction to ", std::floor(share * 100.0) / 100.0, " or raise offload.pinned_limit"));
}

// Without a backward, nothing was learnt. The blocks return to the arena, so the compute stream has to wait.
void Offloader::dropped() {
  unsent_.clear();
  for (Group& group : groups_) {
    if (group.where != Where::here) stats_.host_in_use -= copied_bytes(group);
    queue_->compute_waits(group.copied);
    queue_->compute_waits(group.fetched);
  }
  groups_.clear();
  schedule_.forget();
  end_pass();
}

void Offloader::settle() noexcept {
  queue_->drain();
  for (HostMemory& memory : host_) memory.written = memory.read = nullptr;
  for (Group& group : groups_) group.copied = group.fetched = nullptr;
}

OffloadStats Offloader::take_stats() {
  stats_.transfers = queue_->take_stats();
  const OffloadStats result = stats_;
  stats_ = {};
  stats_.host_in_use = result.host_in_use;
  stats_.host_reserved = result.host_reserved;
  return result;
}

std::vector<std::string> Offloader::take_notes() {
  return std::exchange(notes_, {});
}

}  // namespace deltaport::offload
