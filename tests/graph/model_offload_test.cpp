// SPDX-License-Identifier: Apache-2.0
// Captured graphs whose saved tensors go to the host and come back: the same bits as without either, and replays that
// move what the capture moved.
#include <algorithm>

#include "graph/model_arms.hpp"

namespace deltaport {
namespace {

using offload::OffloaderOptions;
using offload::OffloadStats;
using offload::Start;
using testing::all_scopes;
using testing::Arm;
using testing::expect_same_bits;
using testing::Trace;

OffloaderOptions movers(graph::Scope scope, Start start = Start::between_layers) {
  OffloaderOptions options;
  options.scopes = {"gdn_core_attn", "norm_out", "attn_core"};
  if (scope != graph::Scope::attention) options.scopes.emplace_back("mlp");
  options.min_tensor_elements = 1;
  options.rules.slots = 1;
  options.start = start;
  return options;
}

/// Layers enough that some of them do move.
Arm six_layers() {
  Arm arm;
  arm.model.num_hidden_layers = 6;
  return arm;
}

void expect_same_moves(const Trace& eager, const Trace& graph) {
  ASSERT_EQ(eager.moved.size(), graph.moved.size());
  for (std::size_t s = 0; s < eager.moved.size(); ++s) {
    const OffloadStats &a = eager.moved[s], &b = graph.moved[s];
    EXPECT_GT(b.transfers.to_host_bytes, 0) << "step " << s;
    EXPECT_EQ(a.transfers.to_host_bytes, b.transfers.to_host_bytes) << "step " << s;
    EXPECT_EQ(a.transfers.to_device_bytes, b.transfers.to_device_bytes) << "step " << s;
    EXPECT_EQ(a.groups, b.groups) << "step " << s;
    EXPECT_EQ(a.freed, b.freed) << "step " << s;
    EXPECT_EQ(b.host_in_use, 0) << "step " << s;
    EXPECT_EQ(a.host_reserved, b.host_reserved) << "step " << s;
  }
}

class GraphOffload : public ::testing::TestWithParam<std::tuple<graph::Scope, bool, int>> {};

TEST_P(GraphOffload, GivesTheSameBitsAndMovesTheSameBytes) {
  const auto [scope, packed, micro_batches] = GetParam();
  Arm arm = six_layers();
  arm.packed = packed;
  arm.micro_batches = micro_batches;
  arm.steps = 5;
  const Trace plain = run(arm);
  for (const Start start : {Start::between_layers, Start::at_group}) {
    if (start == Start::at_group && scope != graph::Scope::step) continue;
    for (const auto& [slots, fraction] : {std::pair<std::int64_t, double>{1, 1.0}, {3, 0.5}}) {
      SCOPED_TRACE(concat("start ", static_cast<int>(start), ", slots ", slots, ", fraction ", fraction));
      arm.offload = movers(scope, start);
      arm.offload->rules.slots = slots;
      arm.offload->rules.fraction = fraction;
      arm.graphs.scope = graph::Scope::none;
      const Trace eager = run(arm);
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(plain, eager));
      arm.graphs.scope = scope;
      const Trace graph = run(arm);
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(plain, graph));
      ASSERT_NO_FATAL_FAILURE(expect_same_moves(eager, graph));
      // One pass makes the plan, the next is measured; neither counts where the warm-up step is longer.
      const int eager_passes = std::max(2, micro_batches);
      EXPECT_EQ(graph.stats.launches, graph.stats.segments * (micro_batches * arm.steps - eager_passes));
      EXPECT_TRUE(graph.notes.empty()) << graph.notes.front();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scopes, GraphOffload,
                         ::testing::Combine(::testing::ValuesIn(all_scopes), ::testing::Bool(),
                                            ::testing::Values(1, 3)));

// Whatever orders transfers and kernels must do so at replays as well.
TEST(GraphOffloadRuns, LateAndShuffledTransfersChangeNothing) {
  if constexpr (!runs_on_host) return;  // a device's copies cannot be held back; tests/offload simulates one
  Arm arm = six_layers();
  arm.micro_batches = 2;
  const Trace plain = run(arm);
  for (const graph::Scope scope : all_scopes)
    for (const std::int64_t slots : {1, 2}) {
      SCOPED_TRACE(concat("scope ", static_cast<int>(scope), ", slots ", slots));
      arm.graphs.scope = scope;
      arm.offload = movers(scope);
      arm.offload->rules.slots = slots;
      arm.late_transfers = true;
      const Trace late = run(arm);
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(plain, late));
      EXPECT_GT(late.stats.launches, 0);
      EXPECT_GT(late.moved.back().transfers.to_device_bytes, 0);
    }
}

TEST(GraphOffloadRuns, GraphsHoldLessMemory) {
  for (const graph::Scope scope : all_scopes) {
    Arm arm = six_layers();
    arm.graphs.scope = scope;
    const Trace plain = run(arm);
    arm.offload = movers(scope);
    const Trace moved = run(arm);
    EXPECT_LT(moved.stats.bytes - moved.stats.driver_bytes, plain.stats.bytes - plain.stats.driver_bytes)
        << static_cast<int>(scope);
  }
}

TEST(GraphOffloadRuns, EvaluationInBetweenChangesNothing) {
  for (const graph::Scope scope : all_scopes) {
    Arm arm = six_layers();
    const Trace plain = run(arm);
    arm.offload = movers(scope);
    arm.graphs.scope = scope;
    arm.evaluate = true;
    Trace evaluated = run(arm);
    evaluated.evaluations.clear();
    ASSERT_NO_FATAL_FAILURE(expect_same_bits(plain, evaluated));
    EXPECT_GT(evaluated.stats.launches, 0);
  }
}

// The mover has then moved what the failed stretch committed or took, and must forget it.
TEST(GraphOffloadRuns, AFailedCaptureAtAnyPlaceFallsBackToTheSameBits) {
  Arm arm = six_layers();
  arm.steps = 5;
  const Trace eager = run(arm);
  for (const graph::Scope scope : all_scopes) {
    arm.graphs.scope = scope;
    arm.offload = movers(scope);
    testing::fail_captures_of(arm, 37, [&](const Trace& moved, const Trace& failed) {
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(eager, failed));
      EXPECT_EQ(failed.notes.size(), 1u);
      EXPECT_EQ(failed.moved.back().transfers.to_host_bytes, moved.moved.back().transfers.to_host_bytes);
      EXPECT_EQ(failed.moved.back().useless, 0);
    });
  }
}

TEST(GraphOffloadRuns, GroupsOutsideOfCapturedMixersAreRefused) {
  Arm arm = six_layers();
  arm.graphs.scope = graph::Scope::attention;
  arm.offload = movers(graph::Scope::layer);
  try {
    run(arm);
    FAIL() << "moved what no graph holds";
  } catch (const CaptureError& e) {
    EXPECT_NE(std::string(e.what()).find("'mlp' is saved outside"), std::string::npos) << e.what();
  }
}

TEST(GraphOffloadRuns, TransfersAtGroupsCannotBeOutsideOfGraphs) {
  Arm arm = six_layers();
  arm.graphs.scope = graph::Scope::layer;
  arm.offload = movers(arm.graphs.scope, Start::at_group);
  EXPECT_THROW(run(arm), CaptureError);
}

// Other shapes give another plan; what was captured before keeps its host memory.
TEST(GraphOffloadRuns, ShapesThatChangeAfterTheWarmUpAreCapturedToo) {
  for (const graph::Scope scope : all_scopes) {
    Runtime runtime({.arena = {.poison = true}});
    ModelConfig config = testing::small_lm_config(testing::Head::tied);
    config.num_hidden_layers = 6;
    testing::SmallLm<float> lm(runtime, config);
    const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
    SavedTensors moved, resident;
    testing::Movers movers(runtime, moved, deltaport::movers(scope));
    graph::GraphSegments graphs(runtime, {.scope = scope});
    const auto gradients = [&](bool captured, std::int32_t tokens, int step) {
      const testing::DeviceDocuments d(runtime,
                                       testing::Documents({0, 30 + step, tokens}, config.vocab_size, 5));
      lm.model.parameters().zero_gradients(runtime);
      Context context{runtime, captured ? moved : resident, Mode::train, captured ? &graphs : nullptr};
      lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, 0.1, loss);
      return to_vector(runtime.compute(), lm.model.parameters().flat_gradients());
    };
    // Four of one shape, four of the other, and then in turns.
    for (int step = 0; step < 20; ++step) {
      const std::int32_t tokens = (step < 8 ? step / 4 : step % 2) == 0 ? 90 : 57;
      const auto expected = gradients(false, tokens, step);
      ASSERT_EQ(gradients(true, tokens, step), expected)
          << "step " << step << ", scope " << static_cast<int>(scope);
      graphs.step_done();
      EXPECT_EQ(movers.offloader.take_stats().host_in_use, 0);
    }
    EXPECT_EQ(graphs.stats().chains, 2);
    EXPECT_GT(graphs.stats().launches, 12);
  }
}

// After the warm-up neither the device's memory nor the host's is asked for.
TEST(GraphOffloadRuns, ReplaysAllocateNothing) {
  for (const graph::Scope scope : all_scopes) {
    Runtime runtime;
    ModelConfig config = testing::small_lm_config(testing::Head::tied);
    config.num_hidden_layers = 6;
    testing::SmallLm<float> lm(runtime, config);
    const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
    const testing::DeviceDocuments d(runtime, testing::Documents({0, 30, 90}, config.vocab_size, 5));
    SavedTensors saved;
    testing::Movers movers(runtime, saved, deltaport::movers(scope));
    graph::GraphSegments graphs(runtime, {.scope = scope});
    Context context{runtime, saved, Mode::train, &graphs};
    offload::PinnedPoolStats host;
    ArenaStats device;
    for (int step = 0; step < 10; ++step) {
      lm.model.forward_backward(context, d.tokens, d.labels, d.sequences, 0.1, loss);
      graphs.step_done();
      if (step > 4) {
        EXPECT_EQ(movers.pool.stats().hits + movers.pool.stats().misses, host.hits + host.misses);
        EXPECT_EQ(movers.pool.stats().slabs, host.slabs);
        EXPECT_EQ(runtime.arena().stats().slab_requests, device.slab_requests);
        EXPECT_EQ(runtime.arena().stats().allocated, device.allocated);
      }
      host = movers.pool.stats();
      device = runtime.arena().stats();
    }
    EXPECT_GT(graphs.stats().launches, 0);
  }
}

}  // namespace
}  // namespace deltaport
