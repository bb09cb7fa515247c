// SPDX-License-Identifier: Apache-2.0
// What a step leaves behind, what it asks of the driver, and whether the size estimates are right.
#include "deltaport/model/model_size.hpp"

#include <map>

#include "model/qwen_config.hpp"
#include "model/small_lm.hpp"

namespace deltaport {
namespace {

using testing::DeviceDocuments;
using testing::Documents;
using testing::Head;
using testing::small_lm_config;
using testing::SmallLm;

int driver_allocations = 0;
std::string last_allocation;
std::vector<std::string> global_fences;

void count_allocation(const Kokkos_Profiling_SpaceHandle space, const char* name, const void*,
                      const std::uint64_t bytes) {
  if (bytes == 0) return;  // before release 5.2 Kokkos announces the scratch that a team kernel does not use
  ++driver_allocations;
  last_allocation = concat(name, " in ", space.name, ", ", bytes, " bytes");
}
// The low 24 bits of the device identity name the stream; zero stands for all of them.
void note_fence(const char* name, const std::uint32_t device, std::uint64_t*) {
  if ((device & 0xffffffu) == 0) global_fences.emplace_back(name);
}

class KokkosWatch {
 public:
  KokkosWatch() {
    driver_allocations = 0;
    global_fences.clear();
    Kokkos::Tools::Experimental::set_allocate_data_callback(count_allocation);
    Kokkos::Tools::Experimental::set_begin_fence_callback(note_fence);
  }
  ~KokkosWatch() {
    Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
    Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
  }
};

TEST(HybridLmMemory, TheWatchSeesAllocationsAndGlobalFences) {
  const KokkosWatch watch;
  const Kokkos::View<float*, MemorySpace> view("view", 4);
  Kokkos::fence("everything");
  EXPECT_GE(driver_allocations, 1);
  ASSERT_FALSE(global_fences.empty());
}

template <class T>
class HybridLmSteps : public ::testing::Test {};
using Types = ::testing::Types<bfloat16, float>;
TYPED_TEST_SUITE(HybridLmSteps, Types);

TYPED_TEST(HybridLmSteps, NeitherAllocateNorFenceGlobally) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::tied);
  SmallLm<TypeParam> lm(runtime, config);
  const DeviceDocuments d(runtime, Documents({0, 33, 150}, config.vocab_size, 1));
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  SavedTensors saved;
  Context train{runtime, saved}, evaluate{runtime, saved, Mode::evaluate};
  const auto step = [&] {
    lm.model.parameters().zero_gradients(runtime);
    lm.model.forward_backward(train, d.tokens, d.labels, d.sequences, 0.01, loss);
    lm.model.evaluate(evaluate, d.tokens, d.labels, d.sequences, loss);
  };
  step();
  const ArenaStats warm = runtime.arena().stats();
  {
    const KokkosWatch watch;
    for (int i = 0; i < 3; ++i) step();
    EXPECT_EQ(driver_allocations, 0) << last_allocation;
    EXPECT_TRUE(global_fences.empty()) << global_fences.front();
  }
  runtime.fence("steps done");
  const ArenaStats after = runtime.arena().stats();
  EXPECT_EQ(after.slab_requests, warm.slab_requests);
  EXPECT_EQ(after.allocated, warm.allocated);
  EXPECT_EQ(after.allocated_peak, warm.allocated_peak);
  EXPECT_EQ(after.blocks, warm.blocks);
}

TEST(HybridLmMemory, EverythingIsGivenBack) {
  Runtime runtime;
  const ModelConfig config = small_lm_config(Head::untied);
  SmallLm<float> lm(runtime, config);
  const DeviceDocuments d(runtime, Documents({0, 33, 70}, config.vocab_size, 1));
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  const std::size_t before = runtime.arena().stats().allocated;
  SavedTensors saved;
  Context train{runtime, saved}, evaluate{runtime, saved, Mode::evaluate};
  lm.model.forward_backward(train, d.tokens, d.labels, d.sequences, 1.0, loss);
  EXPECT_TRUE(saved.empty());
  EXPECT_EQ(runtime.arena().stats().allocated, before);
  lm.model.evaluate(evaluate, d.tokens, d.labels, d.sequences, loss);
  EXPECT_TRUE(saved.empty());
  EXPECT_EQ(runtime.arena().stats().allocated, before);
  lm.model.hidden(train, d.tokens, d.sequences);
  EXPECT_GT(runtime.arena().stats().allocated, before);
  saved.clear();
  EXPECT_EQ(runtime.arena().stats().allocated, before);
}

// Saved bytes must be exact for any shape, type and recurrence; one layer at a time shows which kind is
// wrong.
template <class T>
void expect_exact_saved_bytes(const ModelConfig& config, const LmOptions& options) {
  Runtime runtime;
  SmallLm<T> lm(runtime, config, options);
  const DeviceDocuments d(runtime, Documents({0, 33, 64, 100}, config.vocab_size, 2));
  SavedTensors saved;
  Context context{runtime, saved};
  lm.model.hidden(context, d.tokens, d.sequences);
  const ActivationSize size = activation_size(config, d.tokens.size(), dtype_of<T>, options);
  EXPECT_EQ(size.saved_bytes(), static_cast<std::int64_t>(saved.bytes()));
  std::map<std::string, std::int64_t> groups;
  for (const SavedGroupSize& group : saved_groups(config, d.tokens.size(), dtype_of<T>, options))
    for (const SavedTensorSize& tensor : group.tensors) groups[group.scope] += tensor.bytes;
  for (const auto& [scope, bytes] : groups)
    EXPECT_EQ(bytes, static_cast<std::int64_t>(saved.bytes(scope))) << scope;
  saved.clear();
}

TEST(ModelSize, SavedBytesAreExact) {
  for (const auto implementation :
       {recurrence::Implementation::portable, recurrence::Implementation::reference,
        recurrence::Implementation::automatic})
    for (const LayerType type : {LayerType::gdn, LayerType::gdn2, LayerType::attention}) {
      ModelConfig config = small_lm_config(Head::tied);
      config.layer_pattern = {type};
      SCOPED_TRACE(static_cast<int>(type));
      expect_exact_saved_bytes<float>(config, {7, implementation});
      expect_exact_saved_bytes<bfloat16>(config, {7, implementation});
      config.linear.chunk_size = 64;  // the only one that `host` does
      expect_exact_saved_bytes<float>(config, {7, implementation});
      expect_exact_saved_bytes<bfloat16>(config, {7, implementation});
      expect_exact_saved_bytes<float>(config, {7, implementation, NormOutput::save});
      for (const std::int64_t chunk : {16, 64}) {
        config.linear.chunk_size = chunk;
        for (const CoreInputs inputs : {CoreInputs::save, CoreInputs::recompute}) {
          LmOptions again{7, implementation};
          again.core_inputs = inputs;
          expect_exact_saved_bytes<float>(config, again);
          expect_exact_saved_bytes<bfloat16>(config, again);
        }
      }
      config.linear.num_value_heads = 2;
      expect_exact_saved_bytes<double>(config, {7, implementation});
    }
}

template <class T>
void expect_total_near_the_peak() {
  ModelConfig config = small_lm_config(Head::tied);
  config.hidden_size = 64;
  config.intermediate_size = 160;
  config.linear = {2, 4, 16, 32, 4, 16};
  config.attention.head_dim = 32;
  for (const LayerType type : {LayerType::gdn, LayerType::gdn2, LayerType::attention})
    for (const std::int64_t vocab : {50, 2000}) {
      config.layer_pattern = {type};
      config.vocab_size = vocab;
      Runtime runtime;
      const LmOptions options{256};
      SmallLm<T> lm(runtime, config, options);
      const DeviceDocuments d(runtime, Documents({0, 700, 1024}, vocab, 2));
      const std::size_t before = runtime.arena().stats().allocated;
      runtime.arena().reset_peak();
      testing::loss_and_gradients(runtime, lm.model, d);
      const double real = static_cast<double>(runtime.arena().stats().allocated_peak - before);
      const ActivationSize size = activation_size(config, d.tokens.size(), dtype_of<T>, options);
      // Tokens are the caller's.
      const double estimate =
          static_cast<double>(size.saved_bytes() + size.workspace_bytes - 4 * d.tokens.size());
      EXPECT_NEAR(estimate / real, 1.0, 0.15) << static_cast<int>(type) << " " << vocab;
    }
}
TEST(ModelSize, TotalIsNearTheRealPeak) {
  expect_total_near_the_peak<float>();
}
TEST(ModelSize, TotalIsNearTheRealPeakInBfloat16) {
  expect_total_near_the_peak<bfloat16>();
}

TEST(ModelSize, CountsQwen) {
  const ModelConfig config = testing::qwen3_5_0_8b();
  EXPECT_EQ(parameter_count(config), 752'393'024);
  std::int64_t total = 0;
  std::string lines;
  for (const SizeEntry& entry : parameter_breakdown(config)) {
    total += entry.amount;
    lines += entry.component + " " + std::to_string(entry.amount) + "\n";
  }
  EXPECT_EQ(total, 752'393'024);
  EXPECT_EQ(
      lines,
      "embedding 254279680\ngdn mixers 189778752\nattention mixers 44043264\nmlps 264241152\nnorms 50176\n");
  ModelConfig untied = config;
  untied.tie_word_embeddings = false;
  EXPECT_EQ(parameter_count(untied), 752'393'024 + 254'279'680);
}

TEST(ModelSize, CountsWhatAModelAllocates) {
  for (const Head head : {Head::tied, Head::untied}) {
    const ModelConfig config = small_lm_config(head);
    const HybridLm<double> model(config);
    EXPECT_EQ(parameter_count(config), model.parameters().count());
  }
}

TEST(ModelSize, RejectsOtherTypes) {
  EXPECT_THROW(activation_size(small_lm_config(Head::tied), 8, Dtype::f16), ConfigError);
}

}  // namespace
}  // namespace deltaport
