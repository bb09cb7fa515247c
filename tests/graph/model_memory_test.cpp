// SPDX-License-Identifier: Apache-2.0
// What captured graphs ask of the driver, hold, and give back; and that a capture executes nothing.
#include "graph/model_arms.hpp"

namespace deltaport {
namespace {

using testing::DeviceDocuments;
using testing::Documents;
using testing::SmallLm;

int driver_allocations = 0;
std::vector<std::string> global_fences, executed;

void count_allocation(const Kokkos_Profiling_SpaceHandle, const char*, const void*,
                      const std::uint64_t bytes) {
  driver_allocations += bytes > 0;
}
void note_fence(const char* name, const std::uint32_t device, std::uint64_t*) {
  if ((device & 0xffffffu) == 0) global_fences.emplace_back(name);
}
void note_kernel(const char* name, const std::uint32_t, std::uint64_t*) {
  executed.emplace_back(name);
}
void note_copy(Kokkos_Profiling_SpaceHandle, const char* name, const void*, Kokkos_Profiling_SpaceHandle,
               const char*, const void*, std::uint64_t) {
  executed.emplace_back(name);
}

/// Kokkos fences everything before it tells of kernels, so one watch cannot look for both.
enum class WatchFor { allocations_and_fences, kernels_and_copies };

class KokkosWatch {
 public:
  explicit KokkosWatch(WatchFor what) {
    driver_allocations = 0;
    global_fences.clear();
    executed.clear();
    namespace tools = Kokkos::Tools::Experimental;
    if (what == WatchFor::allocations_and_fences) {
      tools::set_allocate_data_callback(count_allocation);
      tools::set_begin_fence_callback(note_fence);
      return;
    }
    tools::set_begin_parallel_for_callback(note_kernel);
    tools::set_begin_parallel_reduce_callback(note_kernel);
    tools::set_begin_parallel_scan_callback(note_kernel);
    tools::set_begin_deep_copy_callback(note_copy);
  }
  ~KokkosWatch() {
    namespace tools = Kokkos::Tools::Experimental;
    tools::set_allocate_data_callback(nullptr);
    tools::set_begin_fence_callback(nullptr);
    tools::set_begin_parallel_for_callback(nullptr);
    tools::set_begin_parallel_reduce_callback(nullptr);
    tools::set_begin_parallel_scan_callback(nullptr);
    tools::set_begin_deep_copy_callback(nullptr);
  }
};

/// A model and one batch for it.
struct Fixture {
  explicit Fixture(ModelConfig model,
                   recurrence::Implementation implementation = recurrence::Implementation::automatic)
      : config(model),
        lm(runtime, config, {.loss_chunk_tokens = 40, .recurrence = implementation}),
        d(runtime, Documents({0, 33, 150}, config.vocab_size, 1)),
        loss(runtime.allocate_zero<double>("loss", Shape{1})),
        scale(runtime.allocate_zero<double>("scale", Shape{1})) {}
  void pass(graph::GraphSegments* graphs) {
    Context context{runtime, saved, Mode::train, graphs};
    lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, scale, loss);
  }
  Runtime runtime;
  ModelConfig config;
  SmallLm<float> lm;
  DeviceDocuments d;
  Tensor<double> loss, scale;
  SavedTensors saved;
};

offload::OffloaderOptions everything_moves(graph::Scope scope) {
  offload::OffloaderOptions options;
  options.scopes = {"gdn_core_attn", "norm_out"};
  if (scope != graph::Scope::attention) options.scopes.emplace_back("mlp");
  options.min_tensor_elements = 1;
  options.rules.slots = 1;
  options.start = offload::Start::between_layers;
  return options;
}

TEST(GraphMemory, TheWatchesSee) {
  const Kokkos::View<float*, MemorySpace> seen("seen", 4);
  {
    const KokkosWatch watch(WatchFor::allocations_and_fences);
    const Kokkos::View<float*, MemorySpace> view("view", 4);
    Kokkos::fence("everything");
    EXPECT_GE(driver_allocations, 1);
    EXPECT_FALSE(global_fences.empty());
  }
  const KokkosWatch watch(WatchFor::kernels_and_copies);
  Fixture f(testing::small_lm_config(testing::Head::tied));
  f.pass(nullptr);
  EXPECT_GT(executed.size(), 80u);
}

std::vector<std::pair<graph::Scope, bool>> scopes_with_and_without_offload() {
  std::vector<std::pair<graph::Scope, bool>> all;
  for (const graph::Scope scope : testing::all_scopes)
    for (const bool moves : {false, true}) all.emplace_back(scope, moves);
  return all;
}

TEST(GraphMemory, StepsAfterTheWarmUpNeitherAllocateNorFenceGlobally) {
  for (const auto& [scope, moves] : scopes_with_and_without_offload()) {
    SCOPED_TRACE(concat("scope ", static_cast<int>(scope), moves ? " and offload" : ""));
    Fixture f(testing::small_lm_config(testing::Head::tied));
    std::optional<testing::Movers> movers;
    if (moves) movers.emplace(f.runtime, f.saved, everything_moves(scope));
    graph::GraphSegments graphs(f.runtime, {.scope = scope});
    SavedTensors nothing;
    Context evaluate{f.runtime, nothing, Mode::evaluate};
    std::int64_t moved = 0;
    const auto step = [&] {
      f.lm.model.parameters().zero_gradients(f.runtime);
      f.pass(&graphs);
      f.pass(&graphs);
      f.lm.model.evaluate(evaluate, f.d.tokens, f.d.labels, f.d.sequences, f.loss);
      graphs.step_done();
      if (movers) moved = movers->offloader.take_stats().transfers.to_host_bytes;
    };
    for (int i = 0; i < 3; ++i) step();
    const ArenaStats warm = f.runtime.arena().stats();
    {
      const KokkosWatch watch(WatchFor::allocations_and_fences);
      for (int i = 0; i < 3; ++i) step();
      EXPECT_EQ(driver_allocations, 0);
      EXPECT_TRUE(global_fences.empty()) << global_fences.front();
    }
    const ArenaStats after = f.runtime.arena().stats();
    EXPECT_EQ(after.slab_requests, warm.slab_requests);
    EXPECT_EQ(after.allocated, warm.allocated);
    EXPECT_EQ(after.blocks, warm.blocks);
    EXPECT_EQ(moved > 0, moves);
  }
}

TEST(GraphMemory, GraphsHoldAsMuchAsAnEagerPassNeeds) {
  Fixture f(testing::small_lm_config(testing::Head::tied));
  const std::size_t before = f.runtime.arena().stats().allocated;
  f.pass(nullptr);
  f.runtime.arena().reset_peak();
  f.pass(nullptr);
  const std::size_t eager = f.runtime.arena().stats().allocated_peak - before;
  graph::GraphSegments graphs(f.runtime, {.scope = graph::Scope::step});
  for (int i = 0; i < 3; ++i) {
    f.pass(&graphs);
    graphs.step_done();
  }
  const std::size_t held = graphs.stats().bytes;
  EXPECT_EQ(f.runtime.arena().stats().allocated, before + held);
  // Besides the pass's inputs, only bounds instead of lengths and what best fit loses.
  EXPECT_GE(held, eager);
  EXPECT_LE(static_cast<double>(held), 1.15 * static_cast<double>(eager));
  graphs.invalidate();
  EXPECT_EQ(f.runtime.arena().stats().allocated, before);
}

TEST(GraphMemory, AnotherShapeIsMeasuredInTheMemoryOfTheGraphs) {
  Fixture f(testing::small_lm_config(testing::Head::tied));
  graph::GraphSegments graphs(f.runtime, {.scope = graph::Scope::layer});
  for (int i = 0; i < 3; ++i) {
    f.pass(&graphs);
    graphs.step_done();
  }
  const std::size_t held = graphs.stats().bytes - graphs.stats().driver_bytes;
  f.d = DeviceDocuments(f.runtime, Documents({0, 33, 140}, f.config.vocab_size, 1));
  const std::size_t before = f.runtime.arena().stats().allocated;
  f.runtime.arena().reset_peak();
  f.pass(&graphs);
  // A norm or so between captured layers, not a pass.
  EXPECT_LT(f.runtime.arena().stats().allocated_peak - before, held / 10);
  EXPECT_EQ(graphs.stats().chains, 1);
}

// Everything that operators enqueue goes through one seam: what escapes it would run now, once, and never again.
TEST(GraphMemory, ACaptureExecutesNothing) {
  using recurrence::Implementation;
  for (const Implementation implementation :
       {Implementation::reference, Implementation::portable, Implementation::host})
    for (const std::int64_t value_heads : {4, 2}) {
      if (!recurrence::available(implementation)) continue;
      ModelConfig config = testing::small_lm_config(testing::Head::untied, value_heads);
      config.linear.chunk_size = implementation == Implementation::host ? 64 : 16;
      Fixture f(config, implementation);
      f.lm.model.parameters().zero_gradients(f.runtime);
      f.runtime.fence("before the capture");
      const auto values = to_vector(f.runtime.compute(), f.lm.model.parameters().flat_values());
      AdamW<float> adamw(f.runtime, f.lm.model.parameters(), {}, 1.0);
      f.runtime.fence("before the capture");
      std::int64_t operations = 0;
      {
        // On devices the calls are made, into the capture, and Kokkos would fence before it tells of them.
        std::optional<KokkosWatch> watch;
        if (runs_on_host) watch.emplace(WatchFor::kernels_and_copies);
        operations =
            graph::CapturedGraph::capture(f.runtime, "pass and update", [&] {
              f.pass(nullptr);
              adamw.update(f.runtime, global_norm(f.runtime, f.lm.model.parameters().flat_gradients()));
            }).operations();
        EXPECT_TRUE(!runs_on_host || executed.empty())
            << executed.size() << " kernels, the first: " << executed.front();
      }
      EXPECT_GT(operations, 80);
      EXPECT_EQ(testing::host(f.runtime, f.loss)[0], 0.0);
      for (const float g : to_vector(f.runtime.compute(), f.lm.model.parameters().flat_gradients()))
        ASSERT_EQ(g, 0.0f);
      EXPECT_EQ(to_vector(f.runtime.compute(), f.lm.model.parameters().flat_values()), values);
    }
}

}  // namespace
}  // namespace deltaport
