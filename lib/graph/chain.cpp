// SPDX-License-Identifier: Apache-2.0
#include "graph/chain.hpp"

#include "deltaport/core/enqueue.hpp"

namespace deltaport::graph {
namespace {

std::size_t bytes_of(const AnyTensor& x) {
  return x.storage == nullptr ? 0 : static_cast<std::size_t>(x.shape.size()) * size_of(x.dtype);
}

Tensor<std::uint8_t> as_bytes(const AnyTensor& x) {
  return {x.storage, reinterpret_cast<std::uint8_t*>(x.data), Shape{static_cast<std::int64_t>(bytes_of(x))}};
}

void copy_values(Runtime& runtime, const AnyTensor& to, const AnyTensor& from) {
  if (bytes_of(from) == 0 || to.data == from.data) return;
  copy(runtime.compute(), as_bytes(to), as_bytes(from));
}

bool same_form(const AnyTensor& a, const AnyTensor& b) {
  return (a.storage == nullptr) == (b.storage == nullptr) && a.dtype == b.dtype && a.shape == b.shape;
}

}  // namespace

std::size_t Chain::driver_bytes() const {
  std::size_t total = 0;
  for (const Segment& segment : segments_) total += segment.graph.driver_bytes();
  return total;
}

AnyTensor Chain::into_region(const AnyTensor& tensor, const char* name) {
  if (bytes_of(tensor) == 0 || region_->owns(tensor.storage)) return tensor;
  AnyTensor placed = tensor;
  placed.storage = runtime_.arena().allocate(name, bytes_of(tensor));
  placed.data = placed.storage->data();
  copy_values(runtime_, placed, tensor);
  return placed;
}

AnyTensors Chain::into_region(AnyTensors inputs, const char* name) {
  const ArenaRegion::Entered entered(*region_);
  for (AnyTensor& input : inputs) input = into_region(input, name);
  return inputs;
}

AnyTensor Chain::unowned(AnyTensor tensor) const {
  if (region_->owns(tensor.storage)) tensor.storage = region_->memory();
  return tensor;
}

AnyTensors Chain::unowned(AnyTensors tensors) const {
  for (AnyTensor& tensor : tensors) tensor = unowned(std::move(tensor));
  return tensors;
}

AnyTensors Chain::begin_measuring(const AnyTensors& inputs, const std::shared_ptr<Storage>& spare) {
  region_.emplace(runtime_.arena(), spare);
  position_ = 0;
  return fixed_ = into_region(inputs, "pass input");
}

AnyTensors Chain::begin_capturing(const AnyTensors& inputs, const std::shared_ptr<Storage>& memory) {
  drop(State::measured);
  region_.emplace(runtime_.arena());
  region_->place(memory);
  position_ = 0;
  return fixed_ = into_region(inputs, "pass input");
}

AnyTensors Chain::begin_replaying(const AnyTensors& inputs) {
  position_ = between_ = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) copy_values(runtime_, fixed_[i], inputs[i]);
  return fixed_;
}

AnyTensors Chain::measure(AnyTensors inputs, const SegmentBody& body) {
  ++position_;
  inputs = into_region(std::move(inputs), "segment input");
  const InputsHidden hidden;
  const ArenaRegion::Entered entered(*region_);
  return body(std::move(inputs));
}

void Chain::between(const std::function<void()>& action) {
  const ArenaRegion::Entered entered(*region_);
  action();
}

AnyTensors Chain::capture(const std::string& name, AnyTensors& inputs, const AnyTensors& accumulated,
                          const SegmentBody& body, const OperationObserver& observe) {
  AnyTensors placed = into_region(inputs, "segment input");
  Segment segment;
  segment.inputs = inputs = unowned(placed);
  for (const AnyTensor& tensor : accumulated) segment.accumulated.push_back(tensor.data);
  AnyTensors outputs;
  {
    const InputsHidden hidden;
    const ArenaRegion::Entered entered(*region_);
    segment.graph = CapturedGraph::capture(
        runtime_, name, [&] { outputs = body(std::move(placed)); }, observe);
  }
  segment.outputs = unowned(outputs);
  segments_.push_back(std::move(segment));
  ++position_;
  return outputs;
}

AnyTensors Chain::replay(const std::string& name, const AnyTensors& inputs, const AnyTensors& accumulated) {
  DELTAPORT_VALIDATE(position_ < segments_.size() && segments_[position_].graph.name() == name, CaptureError,
                     "pass '", pass_, "' comes to segment '", name, "' where it captured ",
                     position_ < segments_.size() ? "'" + segments_[position_].graph.name() + "'" : "its end",
                     ": segments must follow each other as they did then");
  const Segment& segment = segments_[position_++];
  DELTAPORT_VALIDATE(
      inputs.size() == segment.inputs.size() && accumulated.size() == segment.accumulated.size(),
      CaptureError, "captured segment '", name, "' has ", segment.inputs.size(), " inputs and ",
      segment.accumulated.size(), " accumulated tensors, and was given ", inputs.size(), " and ",
      accumulated.size());
  for (std::size_t i = 0; i < accumulated.size(); ++i)
    DELTAPORT_VALIDATE(accumulated[i].data == segment.accumulated[i], CaptureError, "captured segment '",
                       name, "' adds to tensor ", i,
                       " of those accumulated where it was at the capture; it has moved");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    DELTAPORT_VALIDATE(same_form(inputs[i], segment.inputs[i]), CaptureError, "captured segment '", name,
                       "' took ", name_of(segment.inputs[i].dtype), " ", segment.inputs[i].shape.str(),
                       " as input ", i, ", now it is ", name_of(inputs[i].dtype), " ", inputs[i].shape.str());
    copy_values(runtime_, segment.inputs[i], inputs[i]);
  }
  segment.graph.launch();
  return segment.outputs;
}

// What the mover does from its plan on decides which memory a pass asks for, so only a pass that followed it throughout
// was measured.
void Chain::end_measuring(std::uint64_t before, std::uint64_t after) {
  fixed_.clear();
  region_bytes_ = region_->bytes();
  region_.reset();  // and with it the spare memory
  plan_ = after;
  if (before != after)
    state_ = State::fresh;
  else  // a pass without segments of this scope has nothing to capture
    state_ = position_ > 0 ? State::measured : State::eager;
}

void Chain::end_capturing(std::unique_ptr<MovedPass> moved) {
  moved_ = std::move(moved);
  state_ = State::ready;
}

void Chain::end_replaying() {
  DELTAPORT_VALIDATE(position_ == segments_.size(), CaptureError, "pass '", pass_, "' ended before segment '",
                     segments_[position_].graph.name(), "', which it captured");
  if (moved_ != nullptr) moved_->replayed();
}

void Chain::drop(State next) {
  state_ = next;
  moved_.reset();
  segments_.clear();
  fixed_.clear();
  region_.reset();
}

}  // namespace deltaport::graph
