// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/context.hpp"

#include <set>

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/saved_mover.hpp"
#include "deltaport/core/segments.hpp"

namespace deltaport {

void SavedTensors::set_mover(SavedMover* mover) {
  DELTAPORT_VALIDATE(empty() && !open_, Error, "a mover is set while ", size(), " tensors are saved");
  mover_ = mover;
}

SavedGroup SavedTensors::view(const Group& group) {
  return {group.name, std::span(tensors_).subspan(group.begin, group.end - group.begin)};
}

void SavedTensors::open(std::string_view group) {
  DELTAPORT_VALIDATE(!open_, Error, "saved group '", group, "' opened inside '", groups_.back().name, "'");
  groups_.push_back({std::string(group), tensors_.size(), 0, false});
  open_ = true;
}

void SavedTensors::commit() {
  DELTAPORT_VALIDATE(open_, Error, "commit without an open group of saved tensors");
  open_ = false;
  Group& group = groups_.back();
  group.end = tensors_.size();
  if (group.begin == group.end)
    groups_.pop_back();
  else if (mover_ != nullptr)
    mover_->committed(view(group));
}

AnyTensor SavedTensors::pop() {
  DELTAPORT_VALIDATE(
      !tensors_.empty(), Error,
      "backward asks for more saved tensors than forward kept (was forward run in evaluation mode?)");
  DELTAPORT_VALIDATE(!open_, Error, "a saved tensor is taken while group '", groups_.back().name,
                     "' is open");
  Group* group = !groups_.empty() && groups_.back().end == tensors_.size() ? &groups_.back() : nullptr;
  if (group != nullptr && !group->started) {
    group->started = true;
    if (mover_ != nullptr) mover_->before_take(view(*group));
  }
  AnyTensor tensor = std::move(tensors_.back());
  tensors_.pop_back();
  if (group != nullptr && --group->end == group->begin) groups_.pop_back();
  return tensor;
}

std::size_t SavedTensors::bytes(std::string_view group) const {
  std::set<const Storage*> seen;
  std::size_t total = 0;
  const auto add = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Storage* owner = tensors_[i].storage.get();
      if (owner != nullptr && seen.insert(owner).second) total += owner->bytes();
    }
  };
  if (group.empty()) add(0, tensors_.size());
  for (const Group& g : groups_)
    if (g.name == group) add(g.begin, g.end);
  return total;
}

SavedTensors SavedTensors::replaced(const std::function<AnyTensor(const AnyTensor&)>& of) const {
  SavedTensors result = *this;
  for (AnyTensor& tensor : result.tensors_) tensor = of(tensor);
  return result;
}

void SavedTensors::clear() {
  if (mover_ != nullptr) mover_->dropped();
  while (!tensors_.empty()) tensors_.pop_back();
  groups_.clear();
  open_ = false;
}

AnyTensors run_segment(Context& context, SegmentLevel level, const std::string& name, AnyTensors inputs,
                       const AnyTensors& accumulated, const SegmentBody& body) {
  if (context.segments == nullptr || !context.training()) return body(std::move(inputs));
  return context.segments->run(level, name, std::move(inputs), accumulated, context.saved, body);
}

void flush_saved(Context& context) {
  SavedMover* const mover = context.saved.mover();
  if (mover == nullptr || !context.training()) return;
  if (context.segments != nullptr)
    context.segments->flush(*mover);
  else
    mover->flush();
}

void prepare_saved(Context& context) {
  SavedMover* const mover = context.saved.mover();
  if (mover == nullptr) return;
  if (context.segments != nullptr)
    context.segments->prepare(*mover);
  else
    mover->prepare();
}

Sequences make_sequences(Runtime& runtime, const std::vector<std::int32_t>& cu_seqlens, std::int64_t tokens) {
  DELTAPORT_VALIDATE(cu_seqlens.size() >= 2 && cu_seqlens.front() == 0 && cu_seqlens.back() == tokens,
                     ShapeError, "cu_seqlens must hold at least two entries, start at 0 and end at the ",
                     tokens, " tokens given");
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  std::vector<std::int32_t> sequence_of(static_cast<std::size_t>(tokens));
  for (std::size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    DELTAPORT_VALIDATE(cu_seqlens[n] <= cu_seqlens[n + 1], ShapeError, "cu_seqlens[", n + 1,
                       "] = ", cu_seqlens[n + 1], " is smaller than cu_seqlens[", n, "] = ", cu_seqlens[n]);
    for (std::int32_t t = cu_seqlens[n]; t < cu_seqlens[n + 1]; ++t) {
      positions[static_cast<std::size_t>(t)] = t - cu_seqlens[n];
      sequence_of[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(n);
    }
  }
  Sequences result;
  const auto& exec = runtime.compute();
  result.cu_seqlens = from_vector(exec, runtime.arena(), "cu_seqlens",
                                  Shape{static_cast<std::int64_t>(cu_seqlens.size())}, cu_seqlens);
  result.positions = from_vector(exec, runtime.arena(), "positions", Shape{tokens}, positions);
  result.sequence_of = from_vector(exec, runtime.arena(), "sequence_of", Shape{tokens}, sequence_of);
  return result;
}

}  // namespace deltaport
