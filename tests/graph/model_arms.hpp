// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>

#include "deltaport/graph/graph_segments.hpp"
#include "deltaport/offload/offloader.hpp"
#include "deltaport/optim/adamw.hpp"
#include "deltaport/optim/global_norm.hpp"
#include "model/small_lm.hpp"
#include "offload/host_transfer_queue.hpp"

namespace deltaport::testing {

/// One training run of a small model on made-up documents.
struct Arm {
  graph::Options graphs;
  ModelConfig model = small_lm_config(Head::tied);
  recurrence::Implementation recurrence = recurrence::Implementation::portable;
  int micro_batches = 1;
  int steps = 5;
  bool packed = true;
  bool evaluate = false;  ///< before the first step and between steps
  bool poison = true;     ///< of every new block: reads of memory that nothing wrote show
  std::optional<offload::OffloaderOptions> offload;
  bool late_transfers = false;  ///< hosts: each waits first, and what nothing orders is shuffled

  /// Boundaries differ from one micro-batch to the next; the number of tokens and of documents does not.
  Documents documents(int step, int micro) const {
    const std::int32_t tokens = 150, shift = (7 * step + 13 * micro) % 60;
    std::vector<std::int32_t> boundaries = {0, tokens};
    if (packed) boundaries = {0, 20 + shift, 20 + shift, 80 + shift, tokens};
    return {boundaries, model.vocab_size, static_cast<std::uint64_t>(100 * step + micro)};
  }
};

/// Everything that a step computes, after each step.
struct Trace {
  std::vector<double> losses, norms, evaluations;
  std::vector<std::vector<float>> gradients, weights, exp_avg, exp_avg_sq;
  graph::Stats stats;
  std::vector<offload::OffloadStats> moved;  ///< of each step
  std::vector<std::string> notes;
};

/// Saved tensors of a run that may go to the host.
struct Movers {
  Movers(Runtime& runtime, SavedTensors& saved, const offload::OffloaderOptions& options, bool late = false)
      : pool(offload::make_numa_slab_source({}), small_slabs()),
        offloader(runtime.arena(), pool,
                  late ? late_queue() : offload::make_transfer_queue(runtime.compute()), options) {
    saved.set_mover(&offloader);
  }
  static std::unique_ptr<offload::TransferQueue> late_queue() {
    offload::LaneHooks hooks;
    hooks.before = [n = 0]() mutable {
      std::this_thread::sleep_for(std::chrono::microseconds(++n % 7 * 60));
    };
    hooks.pick = [n = std::size_t{0}](std::size_t ready) mutable { return (n += 5) % ready; };
    return std::make_unique<offload::HostTransferQueue>(hooks, hooks);
  }
  static offload::PinnedPoolOptions small_slabs() {
    offload::PinnedPoolOptions options;
    options.slab_bytes = std::size_t{1} << 20;
    return options;
  }
  offload::PinnedPool pool;
  offload::Offloader offloader;
};

inline Trace run(const Arm& arm) {
  Runtime runtime({.arena = {.poison = arm.poison}});
  SmallLm<float> lm(runtime, arm.model, {.loss_chunk_tokens = 40, .recurrence = arm.recurrence});
  auto& parameters = lm.model.parameters();
  OptimizerConfig optimizer;
  optimizer.lr = 0.01;
  AdamW<float> adamw(runtime, parameters, optimizer, 1.0);
  const auto loss = runtime.allocate_zero<double>("loss", Shape{1});
  const auto scale = runtime.allocate_zero<double>("scale", Shape{1});
  SavedTensors saved;
  std::optional<Movers> movers;
  if (arm.offload) movers.emplace(runtime, saved, *arm.offload, arm.late_transfers);
  graph::GraphSegments graphs(runtime, arm.graphs);
  Trace trace;
  Context train{runtime, saved, Mode::train, &graphs}, evaluate{runtime, saved, Mode::evaluate, &graphs};
  const auto evaluation = [&] {
    const DeviceDocuments d(runtime, Documents({0, 33, 70}, arm.model.vocab_size, 999));
    const auto sum = runtime.allocate_zero<double>("evaluation", Shape{1});
    lm.model.evaluate(evaluate, d.tokens, d.labels, d.sequences, sum);
    trace.evaluations.push_back(host(runtime, sum)[0]);
  };
  if (arm.evaluate) evaluation();
  for (int step = 0; step < arm.steps; ++step) {
    parameters.zero_gradients(runtime);
    set_zero(runtime.compute(), loss);
    fill(runtime.compute(), scale, 1.0 / (100 + step));
    for (int micro = 0; micro < arm.micro_batches; ++micro) {
      const DeviceDocuments d(runtime, arm.documents(step, micro));
      lm.model.forward_backward(train, d.tokens, d.labels, d.sequences, scale, loss);
    }
    const auto norm = global_norm(runtime, parameters.flat_gradients());
    trace.gradients.push_back(to_vector(runtime.compute(), parameters.flat_gradients()));
    adamw.step(runtime, 0.01 / (1 + step), norm);
    graphs.step_done();
    trace.losses.push_back(host(runtime, loss)[0]);
    trace.norms.push_back(host(runtime, norm)[0]);
    trace.weights.push_back(to_vector(runtime.compute(), parameters.flat_values()));
    trace.exp_avg.push_back(to_vector(runtime.compute(), adamw.exp_avg()));
    trace.exp_avg_sq.push_back(to_vector(runtime.compute(), adamw.exp_avg_sq()));
    if (movers) trace.moved.push_back(movers->offloader.take_stats());
    if (arm.evaluate) evaluation();
  }
  trace.stats = graphs.stats();
  trace.notes = graphs.take_notes();
  return trace;
}

inline void expect_same_bits(const Trace& eager, const Trace& graph) {
  ASSERT_EQ(eager.losses.size(), graph.losses.size());
  EXPECT_TRUE(same_bits(eager.evaluations, graph.evaluations));
  for (std::size_t s = 0; s < eager.losses.size(); ++s) {
    ASSERT_TRUE(std::isfinite(eager.losses[s])) << "step " << s;
    ASSERT_EQ(eager.losses[s], graph.losses[s]) << "step " << s;
    ASSERT_EQ(eager.norms[s], graph.norms[s]) << "step " << s;
    ASSERT_TRUE(same_bits(eager.gradients[s], graph.gradients[s])) << "step " << s;
    ASSERT_TRUE(same_bits(eager.weights[s], graph.weights[s])) << "step " << s;
    ASSERT_TRUE(same_bits(eager.exp_avg[s], graph.exp_avg[s])) << "step " << s;
    ASSERT_TRUE(same_bits(eager.exp_avg_sq[s], graph.exp_avg_sq[s])) << "step " << s;
  }
}

/// Runs the arm with its captures, then with a failure at every `stride`-th operation that they meet, falling back:
/// check(whole, failed) each time.
template <class Check>
void fail_captures_of(Arm arm, std::int64_t stride, const Check& check) {
  arm.graphs.on_failure = graph::OnFailure::error;
  const auto count = std::make_shared<std::int64_t>(0);
  arm.graphs.observe = [count](const char*) { ++*count; };
  const Trace whole = run(arm);
  const std::int64_t operations = *count;
  EXPECT_GT(operations, 50);
  arm.graphs.on_failure = graph::OnFailure::eager;
  for (std::int64_t n = 1; n <= operations; n += stride) {
    SCOPED_TRACE(concat("operation ", n, ", scope ", static_cast<int>(arm.graphs.scope)));
    arm.graphs.observe = [n, seen = std::make_shared<std::int64_t>(0)](const char*) {
      if (++*seen == n) throw Error("injected");
    };
    const Trace failed = run(arm);
    EXPECT_EQ(failed.stats.segments, 0);
    ASSERT_NO_FATAL_FAILURE(check(whole, failed));
  }
}

inline constexpr graph::Scope all_scopes[] = {graph::Scope::attention, graph::Scope::layer,
                                              graph::Scope::step};

}  // namespace deltaport::testing
