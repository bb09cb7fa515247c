// SPDX-License-Identifier: Apache-2.0
// Device memory really falls, and steps allocate nothing.
#include <gtest/gtest.h>

#include "deltaport/model/model_size.hpp"
#include "deltaport/train/run_offload.hpp"
#include "model/small_lm.hpp"

namespace deltaport {
namespace {

using testing::DeviceDocuments;
using testing::Documents;
using testing::SmallLm;

ModelConfig many_layers() {
  ModelConfig config = testing::small_lm_config(testing::Head::tied);
  config.num_hidden_layers = 16;
  config.layer_pattern = {LayerType::gdn, LayerType::gdn2};
  config.hidden_size = 32;
  config.intermediate_size = 32;
  config.linear = {2, 4, 16, 16, 4, 16};
  return config;
}

OffloadConfig offload_of(std::vector<OffloadScope> scopes) {
  OffloadConfig config;
  config.enabled = true;
  config.scopes = std::move(scopes);
  config.min_tensor_elements = 256;
  return config;
}

/// Peak of a step after the first, above what is always there.
struct StepPeak {
  std::size_t allocated = 0, reserved = 0;
  std::int64_t to_host = 0;
  std::string blocks;
};

StepPeak peak_of(const OffloadConfig* offload_config) {
  Runtime runtime({.arena = {.slab_bytes = std::size_t{1} << 20}});
  const ModelConfig config = many_layers();
  SmallLm<float> lm(runtime, config);
  const DeviceDocuments d(runtime, Documents({0, 200, 512}, config.vocab_size, 1));
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  const std::size_t before = runtime.arena().stats().allocated;
  std::unique_ptr<RunOffload> offload;
  SavedTensors saved;
  if (offload_config != nullptr) {
    offload = std::make_unique<RunOffload>(Communicator(), runtime, *offload_config);
    saved.set_mover(&offload->mover());
  }
  Context context{runtime, saved};
  const auto step = [&] { lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, 0.1, loss); };
  step();
  if (offload) offload->take_metrics(1, 1.0);
  runtime.arena().reset_peak();
  step();
  StepPeak peak;
  peak.allocated = runtime.arena().stats().allocated_peak - before;
  peak.reserved = runtime.arena().stats().reserved_peak;
  if (offload) {
    const OffloadMetrics metrics = offload->take_metrics(2, 1.0);
    peak.to_host = metrics.to_host_bytes;
    peak.blocks = metrics.peak_blocks;
    EXPECT_EQ(metrics.useless_bytes, 0);
  }
  EXPECT_EQ(runtime.arena().stats().allocated, before);
  return peak;
}

// Bytes that forward saves in groups of this name.
std::size_t saved_bytes(std::string_view group) {
  Runtime runtime;
  const ModelConfig config = many_layers();
  SmallLm<float> lm(runtime, config);
  const DeviceDocuments d(runtime, Documents({0, 200, 512}, config.vocab_size, 1));
  SavedTensors saved;
  Context context{runtime, saved};
  lm.model.hidden(context, d.tokens, d.sequences);
  const std::size_t bytes = saved.bytes(group);
  saved.clear();
  return bytes;
}

TEST(OffloadMemory, ThePeakFallsByMostOfWhatTheRecurrenceSaves) {
  const OffloadConfig core = offload_of({OffloadScope::gdn_core_attn});
  const StepPeak off = peak_of(nullptr), on = peak_of(&core);
  const std::size_t recurrence = saved_bytes("gdn_core_attn");
  RecordProperty("recurrence_bytes", static_cast<int>(recurrence));
  RecordProperty("peak_off", static_cast<int>(off.allocated));
  RecordProperty("peak_on", static_cast<int>(on.allocated));
  EXPECT_GE(off.allocated, on.allocated + recurrence * 6 / 10)
      << "recurrence " << recurrence << ", off " << off.allocated << ", on " << on.allocated << ": "
      << on.blocks;
  EXPECT_LT(on.reserved, off.reserved);
  EXPECT_GT(on.to_host, static_cast<std::int64_t>(recurrence * 7 / 10));
}

TEST(OffloadMemory, MoreScopesFreeMore) {
  const OffloadConfig core = offload_of({OffloadScope::gdn_core_attn});
  const OffloadConfig all =
      offload_of({OffloadScope::gdn_core_attn, OffloadScope::norm_out, OffloadScope::mlp});
  const StepPeak less = peak_of(&core), least = peak_of(&all);
  const std::size_t more = saved_bytes("norm_out") + saved_bytes("mlp");
  EXPECT_GE(less.allocated, least.allocated + more * 6 / 10) << least.blocks;
}

int driver_allocations = 0;
std::vector<std::string> global_fences;
void count_allocation(const Kokkos_Profiling_SpaceHandle, const char*, const void*,
                      const std::uint64_t bytes) {
  if (bytes > 0) ++driver_allocations;
}
void note_fence(const char* name, const std::uint32_t device, std::uint64_t*) {
  if ((device & 0xffffffu) == 0) global_fences.emplace_back(name);
}

TEST(OffloadMemory, StepsAfterTheWarmUpAllocateNothing) {
  Runtime runtime;
  const ModelConfig config = many_layers();
  SmallLm<float> lm(runtime, config);
  const DeviceDocuments d(runtime, Documents({0, 200, 512}, config.vocab_size, 1));
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  RunOffload offload(Communicator(), runtime, offload_of({OffloadScope::gdn_core_attn, OffloadScope::mlp}));
  SavedTensors saved;
  saved.set_mover(&offload.mover());
  Context context{runtime, saved};
  const auto step = [&] { lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, 0.1, loss); };
  step();
  step();
  const ArenaStats arena = runtime.arena().stats();
  const offload::PinnedPoolStats pool = offload.pool().stats();
  driver_allocations = 0;
  global_fences.clear();
  Kokkos::Tools::Experimental::set_allocate_data_callback(count_allocation);
  Kokkos::Tools::Experimental::set_begin_fence_callback(note_fence);
  for (int i = 0; i < 3; ++i) step();
  Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
  Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
  EXPECT_EQ(driver_allocations, 0);
  EXPECT_TRUE(global_fences.empty()) << global_fences.front();
  EXPECT_EQ(runtime.arena().stats().slab_requests, arena.slab_requests);
  EXPECT_EQ(runtime.arena().stats().allocated, arena.allocated);
  EXPECT_EQ(offload.pool().stats().hits + offload.pool().stats().misses, pool.hits + pool.misses);
  EXPECT_EQ(offload.pool().stats().retained, pool.retained);
}

// Batches of other lengths are learnt anew, and give the gradients they would give without.
TEST(OffloadMemory, LengthsMayChangeFromBatchToBatch) {
  Runtime runtime;
  const ModelConfig config = many_layers();
  SmallLm<float> lm(runtime, config);
  RunOffload offload(Communicator(), runtime,
                     offload_of({OffloadScope::gdn_core_attn, OffloadScope::norm_out}));
  for (const int tokens : {64, 150, 150, 31, 64}) {
    const DeviceDocuments d(runtime, Documents({0, tokens / 3, tokens}, config.vocab_size, 1));
    std::vector<std::vector<float>> gradients;
    for (const bool moves : {false, true}) {
      SavedTensors saved;
      if (moves) saved.set_mover(&offload.mover());
      Context context{runtime, saved};
      const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
      lm.model.parameters().zero_gradients(runtime);
      lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, 0.1, loss);
      gradients.push_back(to_vector(runtime.compute(), lm.model.parameters().flat_gradients()));
    }
    EXPECT_EQ(gradients[0], gradients[1]) << tokens;
    EXPECT_GT(offload.take_metrics(1, 1.0).to_host_bytes, 0) << tokens;
  }
}

TEST(BlockSummary, AddsBlocksOfOneNameAndSortsThem) {
  const std::vector<ArenaBlock> blocks = {{"a", 1 << 20}, {"b", 3 << 20}, {"a", 4 << 20}, {"c", 1 << 10}};
  EXPECT_EQ(block_summary(blocks, 2), "2 x a 5.0 MiB, b 3.0 MiB");
  EXPECT_EQ(block_summary({}, 2), "");
}

}  // namespace
}  // namespace deltaport
