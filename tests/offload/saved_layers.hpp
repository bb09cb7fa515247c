// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>

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
      saved_.open("scope");
      saved_.save(filled(value(i)));
      saved_.commit();
      use_scratch();
      saved_.flush();
    }
  }
  /// Backward of all layers but the first `rest`.
  void backward(int layers, int rest = 0) {
    for (int i = layers; i-- > rest;) {
      const auto x = saved_.take<float>();
      device_->launch([this, data = x.data(), expected = value(i)] {
        right_ &= std::all_of(data, data + elements, [=](float v) { return v == expected; });
      });
      // As a backward that writes over what was saved.
      device_->launch([data = x.data()] { std::fill(data, data + elements, -2.0F); });
      use_scratch();
    }
  }
  void passes(int count, int layers) {
    for (int i = 0; i < count; ++i) {
      forward(layers);
      backward(layers);
    }
  }
  /// Whether backward has seen what forward saved.
  bool right() {
    device_->finish();
    return right_;
  }

  Tensor<float> filled(float v) {
    const auto x = allocate<float>(arena_, "saved", Shape{elements});
    device_->launch([data = x.data(), v] { std::fill(data, data + elements, v); });
    return x;
  }
  SavedTensors& saved() { return saved_; }
  Offloader& offloader() { return *offloader_; }
  PinnedPool& pool() { return pool_; }
  Arena& arena() { return arena_; }

 private:
  float value(int layer) const { return static_cast<float>(100 * pass_ + layer + 1); }
  void use_scratch() {
    const auto x = allocate<float>(arena_, "scratch", Shape{elements});
    device_->launch([data = x.data()] { std::fill(data, data + elements, -1.0F); });
  }

  Arena arena_{{.slab_bytes = std::size_t{1} << 20}};
  PinnedPool pool_;
  SimulatedDevice* device_ = nullptr;
  std::unique_ptr<Offloader> offloader_;
  SavedTensors saved_;
  bool right_ = true;
  int pass_ = 0;
};

}  // namespace deltaport::offload::test
