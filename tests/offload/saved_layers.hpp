// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "deltaport/core/enqueue.hpp"
#include "offload/movers.hpp"
#include "offload/simulated_device.hpp"

namespace deltaport::offload::test {

/// A made-up model on a simulated device: each layer saves one group whose values depend on layer and pass, and uses
/// scratch memory of the same size, so that memory given back too early is overwritten.
class SavedLayers {
 public:
  static constexpr std::int64_t elements = 4096;
  static constexpr std::size_t bytes = elements * sizeof(float);

  explicit SavedLayers(OffloaderOptions options, SimulatedDevice::Options device = {})
      : pool_(make_numa_slab_source({}), small_slabs()) {
    auto queue = std::make_unique<SimulatedDevice>(std::move(device));
    device_ = queue.get();
    offloader_ = std::make_unique<Offloader>(arena_, pool_, std::move(queue), std::move(options));
    saved_.set_mover(offloader_.get());
  }
  ~SavedLayers() { device_->finish(); }

  void forward(int layers) {
    ++pass_;
    for (int i = 0; i < layers; ++i) {
      layer([&] {
        saved_.open("scope");
        saved_.save(filled(value(i)));
        saved_.commit();
        use_scratch();
      });
      between_layers([this] { offloader_->flush(); });
    }
  }
  /// Backward of all layers but the first `rest`.
  void backward(int layers, int rest = 0) {
    for (int i = layers; i-- > rest;) {
      between_layers([this] { offloader_->prepare(); });
      const auto x = saved_.take<float>();
      launch([this, data = x.data(), expected = value(i)] {
        right_ &= std::all_of(data, data + elements, [&](float v) { return v == expected + shift_; });
      });
      // As a backward that writes over what was saved.
      launch([data = x.data()] { std::fill(data, data + elements, -2.0F); });
      use_scratch();
    }
  }
  void passes(int count, int layers) {
    for (int i = 0; i < count; ++i) {
      forward(layers);
      backward(layers);
    }
  }
  /// One pass, whose kernels and transfers can be run again.
  void captured_pass(int layers) {
    device_->finish();
    offloader_->begin_capture(SavedMover::Captured::stretches);
    recording_ = true;
    passes(1, layers);
    recording_ = false;
    moved_ = offloader_->end_capture();
  }
  /// The captured pass with other values, as graphs are replayed: neither saved tensors nor the offloader take part.
  void replay(float shift) {
    device_->finish();
    shift_ = shift;
    for (const auto& operation : script_) operation();
    moved_->replayed();
  }
  /// Whether backward has seen what forward saved.
  bool right() {
    device_->finish();
    return right_;
  }

  Tensor<float> filled(float v) {
    const auto x = allocate<float>(arena_, "saved", Shape{elements});
    launch([this, data = x.data(), v] { std::fill(data, data + elements, v + shift_); });
    return x;
  }
  SavedTensors& saved() { return saved_; }
  Offloader& offloader() { return *offloader_; }
  PinnedPool& pool() { return pool_; }
  Arena& arena() { return arena_; }

 private:
  void launch(const std::function<void()>& kernel) {
    device_->launch(kernel);
    if (recording_) script_.push_back([this, kernel] { device_->launch(kernel); });
  }
  // Captured layers run inside a recording; here kernels are kept by launch().
  template <class Body>
  void layer(const Body& body) {
    struct : Recorder {
      void begin(const char*) override {}
      void keep(std::function<void()>) override {}
    } recorder;
    std::optional<RecordingScope> scope;
    if (recording_) scope.emplace(recorder);
    body();
  }
  template <class Call>
  void between_layers(const Call& call) {
    call();
    if (recording_) script_.push_back([this, n = between_++] { moved_->between(n); });
  }
  float value(int layer) const { return static_cast<float>(100 * pass_ + layer + 1); }
  void use_scratch() {
    const auto x = allocate<float>(arena_, "scratch", Shape{elements});
    launch([data = x.data()] { std::fill(data, data + elements, -1.0F); });
  }

  Arena arena_{{.slab_bytes = std::size_t{1} << 20}};
  PinnedPool pool_;
  SimulatedDevice* device_ = nullptr;
  std::unique_ptr<Offloader> offloader_;
  SavedTensors saved_;
  std::vector<std::function<void()>> script_;
  std::unique_ptr<MovedPass> moved_;
  std::size_t between_ = 0;
  bool recording_ = false;
  float shift_ = 0.0F;
  bool right_ = true;
  int pass_ = 0;
};

}  // namespace deltaport::offload::test
