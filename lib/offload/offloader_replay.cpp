// SPDX-License-Identifier: Apache-2.0
#include "offload/offloader_replay.hpp"

#include "deltaport/core/enqueue.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport::offload {

Offloader::HostMemory::HostMemory(PinnedPool& pool, TransferQueue& queue, std::string_view name,
                                  std::size_t bytes)
    : pool_(pool), queue_(queue), data_(pool.allocate(std::string(name), bytes)), bytes_(bytes) {}

// The compute stream has waited for, or will, every transfer of a pass, those in replayed graphs as well.
Offloader::HostMemory::~HostMemory() {
  std::vector<EventPtr> after = {written, read};
  try {
    after.push_back(queue_.mark_compute());
    std::erase_if(after, [](const EventPtr& event) { return event == nullptr || event->query(); });
  } catch (const DeviceError&) {
    queue_.drain();  // a broken device has no order to wait for
    after.clear();
  }
  pool_.release(data_, std::move(after));
}

Offloader::Replay::Replay(Offloader& owner, SavedMover::Captured captured)
    : owner_(owner),
      captured_(captured),
      freed_(owner.pass_.stats.freed),
      groups_(owner.pass_.stats.groups),
      bytes_(owner.queue_->bytes()) {}

void Offloader::Replay::finish() {
  for (const auto& memory : owner_.host_)
    if (memory != nullptr) host_.push_back(memory);
  freed_ = owner_.pass_.stats.freed - freed_;
  groups_ = owner_.pass_.stats.groups - groups_;
  const TransferBytes now = owner_.queue_->bytes();
  bytes_ = {now.to_host - bytes_.to_host, now.to_device - bytes_.to_device};
}

void Offloader::Replay::between(std::size_t n) {
  DELTAPORT_VALIDATE(n < logs_.size(), CaptureError, "offload: a captured pass of ", logs_.size(),
                     " stretches without transfers comes to another one");
  logs_[n].replay();
}

void Offloader::Replay::replayed() {
  owner_.pass_.stats.freed += freed_;
  owner_.pass_.stats.groups += groups_;
  // Nodes of a device's graph do not pass through the queue.
  if (whole() && !runs_on_host) owner_.queue_->count(bytes_);
}

void Offloader::log_transfers(const std::function<void()>& enqueue) {
  if (capture_ == nullptr || capture_->whole()) return enqueue();
  queue_->record(&capture_->add_log());
  try {
    enqueue();
  } catch (...) {
    queue_->record(nullptr);
    throw;
  }
  queue_->record(nullptr);
}

// No event from before a capture can be waited for in it, nor one from inside after it.
void Offloader::settle() noexcept {
  queue_->drain();
  for (const auto& memory : host_)
    if (memory != nullptr) memory->written = memory->read = nullptr;
  for (Group& group : pass_.groups) group.copied = group.fetched = nullptr;
}

void Offloader::begin_capture(Captured captured) {
  DELTAPORT_VALIDATE(capture_ == nullptr, CaptureError, "offload: a capture begins inside a capture");
  DELTAPORT_VALIDATE(captured == Captured::whole || options_.start == Start::between_layers, CaptureError,
                     "offload: where layers are captured, transfers must start between them");
  DELTAPORT_VALIDATE(pass_.groups.empty(), CaptureError, "offload: a capture begins while ",
                     pass_.groups.size(), " groups of saved tensors are still to be taken");
  settle();
  capture_ = std::make_unique<Replay>(*this, captured);
}

std::unique_ptr<MovedPass> Offloader::end_capture() {
  if (capture_ == nullptr) return nullptr;
  // What was captured whole has left events behind that nothing outside of its graph can wait for.
  if (capture_->whole()) settle();
  capture_->finish();
  return std::move(capture_);
}

std::unique_ptr<SavedMover::State> Offloader::state(
    const std::function<AnyTensor(const AnyTensor&)>& of) const {
  auto copy = std::make_unique<Pass>(pass_);
  for (Group& group : copy->groups)
    for (Block& block : group.blocks) {
      if (block.storage == nullptr) continue;
      AnyTensor tensor;
      tensor.storage = std::exchange(block.storage, nullptr);
      block.storage = of(tensor).storage;
      block.borrowed = block.storage != tensor.storage;
    }
  return copy;
}

void Offloader::restore(const State& state) {
  pass_ = static_cast<const Pass&>(state);
  plan_is_new_ = false;
}

}  // namespace deltaport::offload
