// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "deltaport/core/error.hpp"
#include "deltaport/offload/offloader.hpp"

namespace deltaport::offload {

void Offloader::prepare() {
  if (pass_.layer > 0) --pass_.layer;
  if (options_.start == Start::between_layers) log_transfers([this] { prepare_layer(); });
}

// A layer's groups first, then those of the next layer down that has any, whose copies have this layer's backward, and
// that of layers without groups in between, to arrive.
void Offloader::prepare_layer() {
  if (pass_.groups.empty()) return;
  if (!pass_.backward) end_forward();
  std::vector<Group>& groups = pass_.groups;
  const auto fetch_layers_from = [&](std::size_t end, std::size_t layer) {
    for (; end > 0 && groups[end - 1].layer >= layer; --end)
      if (groups[end - 1].where == Where::away) fetch(groups[end - 1]);
    return end;
  };
  std::size_t below = fetch_layers_from(groups.size(), pass_.layer);
  while (below > 0 && !groups[below - 1].position) --below;
  if (below > 0) fetch_layers_from(below, groups[below - 1].layer);
  for (std::size_t i = groups.size(); i > 0 && groups[i - 1].layer >= pass_.layer; --i) await(groups[i - 1]);
}

void Offloader::before_take(const SavedGroup& saved) {
  if (!in_scope(saved.name)) return;
  DELTAPORT_VALIDATE(!pass_.groups.empty(), Error, "offload: group '", saved.name,
                     "' is taken, but was committed to somebody else");
  if (!pass_.backward) end_forward();
  Group& group = pass_.groups.back();
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
    pass_.at_position.pop_back();
  }
  pass_.groups.pop_back();
  if (pass_.groups.empty()) end_pass();
}

void Offloader::end_forward() {
  pass_.backward = true;
  send_unsent();
  // All but the last groups are needed later than a copy takes, and backward needs their memory.
  const std::size_t staying = options_.rules.staying();
  while (!pass_.leaving.empty() && pass_.leaving.front() + staying < pass_.schedule.position())
    retire_oldest();
  if (pass_.schedule.position() > 0) plan_is_new_ = pass_.schedule.end_forward();
}

// The arena's blocks may be in use by what was enqueued before, and the host memory may still be written.
void Offloader::fetch(Group& group) {
  HostMemory& memory = *host_[*group.position];
  std::vector<Copy> copies;
  for (Block& block : group.blocks) {
    if (block.storage != nullptr) continue;  // somebody else kept it
    block.storage = arena_.allocate(block.name, block.bytes);
    block.data = block.storage->data();
    for (Block::Place& place : block.tensors) place.offset -= block.begin;
    copies.push_back({block.data, memory.data() + block.host_offset, block.bytes});
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
    std::erase(pass_.leaving, *group.position);
  } else {
    queue_->compute_waits(group.fetched);
  }
  group.where = Where::here;
  pass_.stats.host_in_use -= copied_bytes(group);
}

void Offloader::put_back(const Group& group, const SavedGroup& saved) const {
  for (const Block& block : group.blocks)
    for (const Block::Place& place : block.tensors) {
      saved.tensors[place.tensor].storage = block.storage;
      saved.tensors[place.tensor].data = block.data + place.offset;
    }
}

void Offloader::end_pass() {
  pass_.backward = false;
  pass_.layer = 0;
  pass_.at_position.clear();
  pass_.leaving.clear();
  pass_.unsent.clear();
  if (!std::exchange(plan_is_new_, false)) return;
  ++plan_version_;
  const auto& plan = pass_.schedule.plan();
  for (std::size_t i = 0; i < host_.size(); ++i)
    if (i >= plan.size() || !plan[i].moves) host_[i].reset();
  host_.resize(std::min(host_.size(), plan.size()));
  pool_.trim();
  check_plan();
  lay_out_plan();
}

// A limit that is told must do: what the plan needs is one slab that its groups fill without gaps.
void Offloader::check_plan() const {
  const Schedule& schedule = pass_.schedule;
  const std::size_t needed = pool_.whole_pages(schedule.host_bytes());
  const std::size_t budget = pool_.stats().budget;
  if (needed <= budget) return;
  const double fraction = schedule.fraction_within(budget / pool_.whole_pages(1) * pool_.whole_pages(1));
  throw OutOfMemory(
      concat("offload: ", std::ranges::count(schedule.plan(), true, &Schedule::Planned::moves),
             " groups need ", needed, " bytes of pinned host memory, the limit is ", budget, ". ",
             fraction > 0.0 ? concat("Set offload.fraction to ", fraction, " or raise offload.pinned_limit")
                            : std::string("Not even one of them fits: raise offload.pinned_limit")));
}

// The warm-up took slab after slab for every group, and had perhaps no room for some that move. What is in pieces may be
// too little where the whole is not.
void Offloader::lay_out_plan() {
  const auto& plan = pass_.schedule.plan();
  host_.resize(plan.size());
  const auto take = [&](std::size_t i) {
    if (!plan[i].moves || (host_[i] != nullptr && host_[i]->bytes() == plan[i].host_bytes())) return;
    host_[i].reset();
    host_[i] = std::make_shared<HostMemory>(pool_, *queue_, plan[i].shape.scope, plan[i].host_bytes());
  };
  const auto take_all = [&] {
    for (std::size_t i = 0; i < plan.size(); ++i) take(i);
  };
  try {
    return take_all();
  } catch (const OutOfMemory&) {  // in pieces
    host_.assign(plan.size(), nullptr);
  }
  try {
    pool_.reserve(pass_.schedule.host_bytes());
    take_all();
  } catch (const OutOfMemory& e) {
    throw OutOfMemory(concat("offload: ", e.what(), " (offload.pinned_limit, offload.fraction)"));
  }
}

// Without a backward, nothing was learnt. The blocks return to the arena, so the compute stream has to wait.
void Offloader::dropped() {
  pass_.unsent.clear();
  for (Group& group : pass_.groups) {
    if (group.where != Where::here) pass_.stats.host_in_use -= copied_bytes(group);
    queue_->compute_waits(group.copied);
    queue_->compute_waits(group.fetched);
  }
  pass_.groups.clear();
  pass_.schedule.forget();
  end_pass();
}

OffloadStats Offloader::take_stats() {
  OffloadStats result = std::exchange(pass_.stats, {});
  pass_.stats.host_in_use = result.host_in_use;
  result.transfers = queue_->take_stats();
  for (const auto& memory : host_)
    if (memory != nullptr) result.host_reserved += static_cast<std::int64_t>(memory->bytes());
  return result;
}

std::vector<std::string> Offloader::take_notes() {
  return std::exchange(notes_, {});
}

}  // namespace deltaport::offload
