// SPDX-License-Identifier: Apache-2.0
#include "deltaport/offload/offloader.hpp"

#include <algorithm>

#include "deltaport/core/enqueue.hpp"
#include "deltaport/core/error.hpp"
#include "offload/offloader_replay.hpp"

namespace deltaport::offload {
namespace {

void check(const OffloaderOptions& options) {
  DELTAPORT_VALIDATE(!options.scopes.empty(), ConfigError, "offload: no scopes are given");
  DELTAPORT_VALIDATE(options.min_tensor_elements >= 0, ConfigError,
                     "offload: min_tensor_elements = ", options.min_tensor_elements, " must not be negative");
  DELTAPORT_VALIDATE(options.max_inflight >= 0 && options.max_inflight <= options.rules.slots, ConfigError,
                     "offload: max_inflight = ", options.max_inflight,
                     " must be in [0, slots = ", options.rules.slots, "]");
}

}  // namespace

Offloader::Offloader(Arena& arena, PinnedPool& pool, std::unique_ptr<TransferQueue> queue,
                     OffloaderOptions options)
    : arena_(arena),
      pool_(pool),
      queue_(std::move(queue)),
      options_(std::move(options)),
      pass_(options_.rules) {
  check(options_);
  if (options_.max_inflight == 0) options_.max_inflight = options_.rules.slots;
}

Offloader::~Offloader() {
  settle();
  pass_.groups.clear();
  host_.clear();
}

bool Offloader::in_scope(std::string_view name) const {
  return std::ranges::find(options_.scopes, name) != options_.scopes.end();
}

std::vector<Offloader::Block> Offloader::movable_blocks(const SavedGroup& group) const {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < group.tensors.size(); ++i) {
    const AnyTensor& tensor = group.tensors[i];
    if (tensor.storage == nullptr || tensor.shape.size() == 0) continue;
    const auto offset = static_cast<std::size_t>(tensor.data - tensor.storage->data());
    const std::size_t end = offset + static_cast<std::size_t>(tensor.shape.size()) * size_of(tensor.dtype);
    auto block = std::ranges::find(blocks, tensor.storage, &Block::storage);
    if (block == blocks.end()) {
      Block found;
      found.storage = tensor.storage;
      found.data = tensor.storage->data();
      found.name = tensor.storage->name();
      found.begin = offset;
      blocks.push_back(std::move(found));
      block = blocks.end() - 1;
    }
    const std::size_t block_end = std::max(block->begin + block->bytes, end);
    block->begin = std::min(block->begin, offset);
    block->bytes = block_end - block->begin;
    block->tensors.push_back({i, offset});
    block->largest = std::max(block->largest, tensor.shape.size());
  }
  std::erase_if(blocks, [this](const Block& b) { return b.largest < options_.min_tensor_elements; });
  return blocks;
}

void Offloader::committed(const SavedGroup& saved) {
  if (!in_scope(saved.name)) return;
  DELTAPORT_VALIDATE(!pass_.backward, Error, "offload: group '", saved.name, "' is committed while ",
                     pass_.groups.size(), " groups of the forward before it are still to be taken");
  DELTAPORT_VALIDATE(capture_ == nullptr || is_recording(), CaptureError, "offload: group '", saved.name,
                     "' is saved outside of what is captured, where it cannot be moved");
  Group& group = pass_.groups.emplace_back();
  group.scope = saved.name;
  group.layer = pass_.layer;
  std::vector<Block> blocks = movable_blocks(saved);
  if (blocks.empty()) return;
  const std::size_t position = pass_.schedule.position();
  group.position = position;
  pass_.at_position.push_back(pass_.groups.size() - 1);
  GroupShape shape{group.scope, {}};
  for (Block& block : blocks) {
    block.index = shape.bytes.size();
    shape.bytes.push_back(block.bytes);
  }
  const GroupDecision decision = pass_.schedule.next(shape);
  DELTAPORT_VALIDATE(capture_ == nullptr || pass_.schedule.follows_plan(), CaptureError, "offload: group ",
                     position, " ('", saved.name, "') of a captured pass is not the one that was planned");
  std::erase_if(blocks, [&](const Block& b) { return decision.shared[b.index]; });
  if (decision.moves && take_host_memory(position, blocks)) {
    group.blocks = std::move(blocks);
    for (const Block& block : group.blocks)
      for (const Block::Place& place : block.tensors) {
        saved.tensors[place.tensor].storage.reset();
        saved.tensors[place.tensor].data = nullptr;
      }
    group.where = Where::leaving;
    pass_.leaving.push_back(position);
    pass_.unsent.push_back(position);
    pass_.stats.host_in_use += copied_bytes(group);
  }
  if (options_.start == Start::between_layers) return;
  send_unsent();
  retire_what_is_due();
}

void Offloader::retire_what_is_due() {
  const auto slots = static_cast<std::size_t>(options_.rules.slots);
  while (!pass_.leaving.empty() && (pass_.leaving.front() + slots < pass_.schedule.position() ||
                                    pass_.leaving.size() > static_cast<std::size_t>(options_.max_inflight)))
    retire_oldest();
}

// False in a warm-up that the pool has no more room for: the plan may need less.
bool Offloader::take_host_memory(std::size_t position, std::vector<Block>& blocks) {
  std::size_t bytes = 0;
  for (Block& block : blocks) {
    block.host_offset = bytes;
    bytes += whole_lines(block.bytes);
  }
  if (bytes == 0) return false;
  if (host_.size() <= position) host_.resize(position + 1);
  std::shared_ptr<HostMemory>& memory = host_[position];
  if (memory != nullptr && memory->bytes() == bytes) return true;
  memory.reset();
  try {
    memory = std::make_shared<HostMemory>(pool_, *queue_, blocks.front().name, bytes);
  } catch (const OutOfMemory& e) {
    if (!pass_.schedule.follows_plan()) return false;
    throw OutOfMemory(concat("offload: ", e.what(), " (offload.pinned_limit, offload.fraction)"));
  }
  return true;
}

std::int64_t Offloader::copied_bytes(const Group& group) const {
  std::int64_t bytes = 0;
  for (const Block& block : group.blocks) bytes += static_cast<std::int64_t>(block.bytes);
  return bytes;
}

void Offloader::flush() {
  ++pass_.layer;
  if (options_.start == Start::at_group) return;
  log_transfers([this] {
    send_unsent();
    retire_what_is_due();
  });
}

void Offloader::send_unsent() {
  for (; !pass_.unsent.empty(); pass_.unsent.pop_front()) send(at(pass_.unsent.front()));
}

void Offloader::send(Group& group) {
  HostMemory& memory = *host_[*group.position];
  std::vector<Copy> copies;
  for (const Block& block : group.blocks)
    copies.push_back({memory.data() + block.host_offset, block.data + block.begin, block.bytes});
  // What computed the tensors comes first, and whoever still reads this host memory.
  group.copied = memory.written =
      queue_->copy(Direction::to_host, copies, {queue_->mark_compute(), memory.read});
  ++pass_.stats.groups;
}

// The blocks return to the arena: whatever is enqueued on the compute stream after the wait may overwrite them.
void Offloader::retire_oldest() {
  Group& group = at(pass_.leaving.front());
  pass_.leaving.pop_front();
  queue_->compute_waits(group.copied);
  group.where = Where::away;
  for (Block& block : group.blocks) {
    if (block.borrowed || block.storage.use_count() == 1) {
      pass_.stats.freed += static_cast<std::int64_t>(block.storage->bytes());
      block.storage.reset();
      continue;
    }
    pass_.schedule.is_shared(*group.position, block.index);
    pass_.stats.useless += static_cast<std::int64_t>(block.bytes);
    const std::string note =
        concat("offload: ", block.bytes, " bytes of '", block.name, "' (group ", group.scope,
               ") were copied to the host, but somebody else keeps them on the device; they stay there from "
               "now on");
    if (std::ranges::find(notes_, note) == notes_.end()) notes_.push_back(note);
  }
}

}  // namespace deltaport::offload
