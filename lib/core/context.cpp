// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/context.hpp"

#include <set>

#include "deltaport/core/parallel.hpp"
#include "deltaport/core/segments.hpp"

namespace deltaport {

void SavedTensors::open(std::string_view group) {
  DELTAPORT_VALIDATE(open_ < 0, Error, "saved group '", group, "' opened inside '",
                     groups_[static_cast<std::size_t>(open_)], "'");
  groups_.emplace_back(group);
  open_ = static_cast<int>(groups_.size()) - 1;
}

void SavedTensors::commit() {
  DELTAPORT_VALIDATE(open_ >= 0, Error, "commit without an open group of saved tensors");
  open_ = -1;
}

void SavedTensors::push(AnyTensor tensor) {
  entries_.push_back({std::move(tensor), open_});
}

AnyTensor SavedTensors::pop() {
  DELTAPORT_VALIDATE(
      !entries_.empty(), Error,
      "backward asks for more saved tensors than forward kept (was forward run in evaluation mode?)");
  Entry entry = std::move(entries_.back());
  entries_.pop_back();
  // Groups are dropped with their last tensor, so the list stays as short as the tape.
  while (!groups_.empty() &&
         (entries_.empty() || entries_.back().group < static_cast<int>(groups_.size()) - 1) && open_ < 0 &&
         entry.group == static_cast<int>(groups_.size()) - 1)
    groups_.pop_back();
  return std::move(entry.tensor);
}

std::size_t SavedTensors::bytes(std::string_view group) const {
  std::set<const Storage*> seen;
  std::size_t total = 0;
  for (const Entry& entry : entries_) {
    const bool wanted =
        group.empty() || (entry.group >= 0 && groups_[static_cast<std::size_t>(entry.group)] == group);
    const Storage* owner = entry.tensor.storage.get();
    if (wanted && owner != nullptr && seen.insert(owner).second) total += owner->bytes();
  }
  return total;
}

SavedTensors SavedTensors::replaced(const std::function<AnyTensor(const AnyTensor&)>& of) const {
  SavedTensors result = *this;
  for (Entry& entry : result.entries_) entry.tensor = of(entry.tensor);
  return result;
}

void SavedTensors::clear() {
  while (!entries_.empty()) entries_.pop_back();
  groups_.clear();
  open_ = -1;
}

AnyTensors run_segment(Context& context, SegmentLevel level, const std::string& name, AnyTensors inputs,
                       const AnyTensors& accumulated, const SegmentBody& body) {
  if (context.segments == nullptr || !context.training()) return body(std::move(inputs));
  return context.segments->run(level, name, std::move(inputs), accumulated, context.saved, body);
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
