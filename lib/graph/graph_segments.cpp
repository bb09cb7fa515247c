// SPDX-License-Identifier: Apache-2.0
#include "deltaport/graph/graph_segments.hpp"

#include <algorithm>
#include <chrono>

#include "graph/chain.hpp"

namespace deltaport::graph {
namespace {

SegmentLevel level_of(Scope scope) {
  return scope == Scope::attention ? SegmentLevel::mixer
         : scope == Scope::layer   ? SegmentLevel::layer
                                   : SegmentLevel::step;
}

std::string describe(const std::string& pass, const AnyTensors& inputs) {
  std::string text = pass;
  for (const AnyTensor& input : inputs) text += concat(" ", name_of(input.dtype), input.shape.str());
  return text;
}

}  // namespace

GraphSegments::GraphSegments(Runtime& runtime, const Options& options)
    : runtime_(runtime), options_(options) {
  check_options(options);
}

GraphSegments::~GraphSegments() = default;

bool GraphSegments::captures(SegmentLevel level) const {
  return options_.scope != Scope::none && level == level_of(options_.scope);
}

Chain* GraphSegments::chain_for(const std::string& pass, const AnyTensors& inputs) {
  const std::string key = describe(pass, inputs);
  const auto found = chains_.find(key);
  if (found != chains_.end()) return found->second.get();
  const auto same_pass = std::count_if(chains_.begin(), chains_.end(),
                                       [&](const auto& entry) { return entry.second->pass() == pass; });
  if (same_pass >= options_.max_shapes) {
    const std::string problem =
        concat("graph.max_shapes = ", options_.max_shapes, " is reached: inputs of another form,",
               key.substr(pass.size()), ", came to the pass '", pass, "'");
    DELTAPORT_VALIDATE(
        options_.on_failure == OnFailure::eager, CaptureError, problem,
        ". Raise graph.max_shapes (each takes the memory of one pass), or set graph.on_failure: eager");
    notes_.push_back(problem + "; it runs eagerly");
    auto chain = std::make_unique<Chain>(runtime_, std::string(), key);  // of no pass: takes no place
    chain->drop(Chain::State::eager);
    return chains_.emplace(key, std::move(chain)).first->second.get();
  }
  return chains_.emplace(key, std::make_unique<Chain>(runtime_, pass, key)).first->second.get();
}

const std::shared_ptr<Storage>& GraphSegments::memory_of(std::size_t bytes) {
  if (memory_ != nullptr && memory_->bytes() >= bytes) return memory_;
  for (auto& [key, chain] : chains_)
    if (chain->state() == Chain::State::ready) chain->drop(Chain::State::measured);
  memory_.reset();
  // Slabs that only the eager passes needed make room.
  runtime_.arena().trim();
  memory_ = runtime_.arena().allocate("captured graphs", bytes);
  return memory_;
}

GraphSegments::Phase GraphSegments::phase_of(const Chain& chain) const {
  switch (chain.state()) {
    case Chain::State::eager:
      return Phase::eager;
    case Chain::State::ready:
      return Phase::replay;
    case Chain::State::measured:
      return steps_ < options_.warmup_steps || chain.plan() != plan() ? Phase::measure : Phase::capture;
    default:
      return Phase::measure;
  }
}

std::uint64_t GraphSegments::plan() const {
  return mover_ != nullptr ? mover_->plan() : 0;
}

AnyTensors GraphSegments::begin(const std::string& pass, const AnyTensors& inputs,
                                const SavedTensors& saved) {
  DELTAPORT_VALIDATE(phase_ == Phase::outside, CaptureError, "pass '", pass, "' begins inside a pass");
  // The work timer waits for the stream at every change of kind, which no capture allows.
  if (options_.scope == Scope::none || runtime_.timer().enabled()) {
    phase_ = Phase::eager;
    return inputs;
  }
  active_ = chain_for(pass, inputs);
  mover_ = saved.mover();
  plan_ = plan();
  phase_ = phase_of(*active_);
  try {
    if (phase_ == Phase::measure) return active_->begin_measuring(inputs, memory_);
    if (phase_ == Phase::capture) return begin_capturing(inputs);
    if (phase_ == Phase::replay) return active_->begin_replaying(inputs);
  } catch (...) {
    abandon();
    throw;
  }
  return inputs;
}

AnyTensors GraphSegments::begin_capturing(const AnyTensors& inputs) {
  using Captured = SavedMover::Captured;
  const auto failed = [&](const Error& e) {
    if (options_.on_failure == OnFailure::error) throw;
    fall_back(concat("graphs of the pass '", active_->pass(), "': ", e.what()));
    return inputs;
  };
  try {
    if (mover_ != nullptr)
      mover_->begin_capture(options_.scope == Scope::step ? Captured::whole : Captured::stretches);
    return active_->begin_capturing(inputs, memory_of(active_->region_bytes()));
  } catch (const OutOfMemory& e) {
    return failed(e);
  } catch (const CaptureError& e) {
    return failed(e);
  }
}

// The rest of the pass, and later ones of its shape, are eager.
void GraphSegments::fall_back(const std::string& note) {
  notes_.push_back(note + "; this pass runs eagerly from now on");
  if (mover_ != nullptr) mover_->end_capture();
  active_->drop(Chain::State::eager);
  const auto is_ready = [](const auto& entry) { return entry.second->state() == Chain::State::ready; };
  if (std::none_of(chains_.begin(), chains_.end(), is_ready)) memory_.reset();
  phase_ = Phase::eager;
}

AnyTensors GraphSegments::run(SegmentLevel level, const std::string& name, AnyTensors inputs,
                              const AnyTensors& accumulated, SavedTensors& saved, const SegmentBody& body) {
  if (phase_ <= Phase::eager || !captures(level)) return body(std::move(inputs));
  if (phase_ == Phase::measure) return active_->measure(std::move(inputs), body);
  if (phase_ == Phase::capture) return capture(name, std::move(inputs), accumulated, saved, body);
  AnyTensors outputs = active_->replay(name, inputs, accumulated);
  ++launches_;
  return outputs;
}

AnyTensors GraphSegments::capture(const std::string& name, AnyTensors inputs, const AnyTensors& accumulated,
                                  SavedTensors& saved, const SegmentBody& body) {
  // Owning what the segment takes would keep blocks that its later requests were measured to get.
  const auto unowned = [this](const AnyTensor& x) { return active_->unowned(x); };
  const SavedTensors before = saved.replaced(unowned);
  const auto moved_before = mover_ != nullptr ? mover_->state(unowned) : nullptr;
  const auto start = std::chrono::steady_clock::now();
  AnyTensors outputs;
  try {
    outputs = active_->capture(name, inputs, accumulated, body, options_.observe);
  } catch (const CaptureError& e) {
    // Nothing of the segment was executed: from here on the pass goes on eagerly, as if it had never been captured.
    saved = before;
    if (mover_ != nullptr) mover_->restore(*moved_before);
    if (options_.on_failure == OnFailure::error) throw;
    fall_back(e.what());
    return body(std::move(inputs));
  }
  capture_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  active_->launch_last();
  ++launches_;
  return outputs;
}

void GraphSegments::flush(SavedMover& mover) {
  between(mover, &SavedMover::flush);
}

void GraphSegments::prepare(SavedMover& mover) {
  between(mover, &SavedMover::prepare);
}

void GraphSegments::between(SavedMover& mover, void (SavedMover::*action)()) {
  // Inside the segment of a whole pass, that segment's region has been entered.
  if (phase_ <= Phase::eager || options_.scope == Scope::step) return (mover.*action)();
  if (phase_ == Phase::replay) return active_->replay_between();
  active_->between([&] { (mover.*action)(); });
}

void GraphSegments::end() {
  DELTAPORT_VALIDATE(phase_ != Phase::outside, CaptureError, "a pass ends that never began");
  if (phase_ == Phase::measure) active_->end_measuring(plan_, plan());
  if (phase_ == Phase::capture) active_->end_capturing(mover_ != nullptr ? mover_->end_capture() : nullptr);
  if (phase_ == Phase::replay) active_->end_replaying();
  active_ = nullptr;
  mover_ = nullptr;
  phase_ = Phase::outside;
}

void GraphSegments::abandon() noexcept {
  if (phase_ == Phase::capture && mover_ != nullptr) mover_->end_capture();
  if (phase_ == Phase::measure || phase_ == Phase::capture) active_->drop(Chain::State::fresh);
  active_ = nullptr;
  mover_ = nullptr;
  phase_ = Phase::outside;
}

void GraphSegments::invalidate() {
  DELTAPORT_VALIDATE(phase_ == Phase::outside, CaptureError, "graphs are dropped inside a pass");
  chains_.clear();
  memory_.reset();
}

Stats GraphSegments::stats() const {
  Stats stats;
  for (const auto& [key, chain] : chains_) {
    if (chain->state() != Chain::State::ready) continue;
    ++stats.chains;
    stats.driver_bytes += chain->driver_bytes();
    for (const Segment& segment : chain->segments()) {
      ++stats.segments;
      stats.operations += segment.graph.operations();
    }
  }
  stats.bytes = stats.driver_bytes + (memory_ != nullptr ? memory_->bytes() : 0);
  stats.launches = launches_;
  stats.capture_seconds = capture_seconds_;
  return stats;
}

std::vector<std::string> GraphSegments::take_notes() {
  return std::exchange(notes_, {});
}

}  // namespace deltaport::graph
