// SPDX-License-Identifier: Apache-2.0
// Every wrong argument is refused with its name; the table breaks one argument at a time.
#include <functional>
#include <utility>

#include "conformance/implementations.hpp"
#include "deltaport/core/parallel.hpp"

namespace {

using namespace deltaport;
using namespace deltaport::conformance;
using recurrence::Gdn2Inputs;
using recurrence::GdnInputs;
using recurrence::Options;

const Sizes valid{.batch = 2, .tokens = 3, .key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8};

template <class Inputs>
struct Broken {
  const char* expected;  // in the message
  std::function<void(Runtime&, Inputs&, Options&)> break_it;
};

Tensor<float> zeros(Runtime& runtime, const Shape& shape) {
  return runtime.allocate_zero<float>("zeros", shape);
}
Tensor<std::int32_t> boundaries(Runtime& runtime, const std::vector<std::int32_t>& values) {
  return from_vector<std::int32_t>(runtime.compute(), runtime.arena(), "cu_seqlens",
                                   {static_cast<std::int64_t>(values.size())}, values);
}

template <class Call>
void expect_refused(const char* expected, Call call) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected a refusal with: " << expected;
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find(expected), std::string::npos) << e.what();
  }
}

template <class Inputs>
std::vector<Broken<Inputs>> shared_table() {
  return {
      {"q is missing", [](Runtime&, Inputs& x, Options&) { x.q = {}; }},
      {"q has shape",
       [](Runtime& r, Inputs& x, Options&) {
         x.q = zeros(r, {2, 3, 16});
       }},
      {"k is missing", [](Runtime&, Inputs& x, Options&) { x.k = {}; }},
      {"k has shape [2, 3, 2, 9]",
       [](Runtime& r, Inputs& x, Options&) {
         x.k = zeros(r, {2, 3, 2, 9});
       }},
      {"v is missing", [](Runtime&, Inputs& x, Options&) { x.v = {}; }},
      {"v has shape [2, 4, 4, 8]",
       [](Runtime& r, Inputs& x, Options&) {
         x.v = zeros(r, {2, 4, 4, 8});
       }},
      {"v has HV = 3",
       [](Runtime& r, Inputs& x, Options&) {
         x.v = zeros(r, {2, 3, 3, 8});
       }},
      {"g is missing", [](Runtime&, Inputs& x, Options&) { x.g = {}; }},
      {"g has shape",
       [](Runtime& r, Inputs& x, Options&) {
         x.g = zeros(r, {2, 3});
       }},
      {"initial_state has shape [3, 4, 8, 8]",
       [](Runtime& r, Inputs& x, Options&) {
         x.initial_state = zeros(r, {3, 4, 8, 8});
       }},
      {"cu_seqlens needs B = 1",
       [](Runtime& r, Inputs& x, Options&) {
         x.cu_seqlens = boundaries(r, {0, 3});
       }},
      {"cu_seqlens has shape [1]",
       [](Runtime& r, Inputs& x, Options&) { x.cu_seqlens = boundaries(r, {0}); }},
      {"chunk_size is 48", [](Runtime&, Inputs&, Options& o) { o.chunk_size = 48; }},
      {"scale is", [](Runtime&, Inputs&, Options& o) { o.scale = std::numeric_limits<double>::infinity(); }},
  };
}

TEST(Arguments, GdnForward) {
  Runtime runtime;
  using Inputs = GdnInputs<float>;
  auto table = shared_table<Inputs>();
  table.push_back({"g has shape [2, 3, 2]", [](Runtime& r, Inputs& x, Options&) {
                     x.g = zeros(r, {2, 3, 2});
                   }});
  table.push_back({"beta is missing", [](Runtime&, Inputs& x, Options&) { x.beta = {}; }});
  table.push_back({"beta has shape [2, 3, 5]", [](Runtime& r, Inputs& x, Options&) {
                     x.beta = zeros(r, {2, 3, 5});
                   }});
  for (const auto& broken : table) {
    auto inputs = gdn_inputs<float>(runtime, random_problem(Rule::gdn, valid, {}, 1));
    Options options;
    broken.break_it(runtime, inputs, options);
    expect_refused(broken.expected, [&] { recurrence::gdn_forward(runtime, inputs, options); });
  }
}

TEST(Arguments, Gdn2Forward) {
  Runtime runtime;
  using Inputs = Gdn2Inputs<float>;
  auto table = shared_table<Inputs>();
  table.push_back({"g has shape [2, 3, 3, 8]", [](Runtime& r, Inputs& x, Options&) {
                     x.g = zeros(r, {2, 3, 3, 8});
                   }});
  table.push_back({"b is missing", [](Runtime&, Inputs& x, Options&) { x.b = {}; }});
  table.push_back({"b has shape [2, 3, 2, 8]", [](Runtime& r, Inputs& x, Options&) {
                     x.b = zeros(r, {2, 3, 2, 8});
                   }});
  table.push_back({"w is missing", [](Runtime&, Inputs& x, Options&) { x.w = {}; }});
  table.push_back({"w has shape [2, 3, 2, 8]", [](Runtime& r, Inputs& x, Options&) {
                     x.w = zeros(r, {2, 3, 2, 8});
                   }});
  for (const auto& broken : table) {
    auto inputs = gdn2_inputs<float>(runtime, random_problem(Rule::gdn2, valid, {}, 1));
    Options options;
    broken.break_it(runtime, inputs, options);
    expect_refused(broken.expected, [&] { recurrence::gdn2_forward(runtime, inputs, options); });
  }
}

/// A call with raw gates, as `break_it` leaves it.
template <class Inputs, class Call>
void expect_all_refused(Rule rule, const Activations& activations, const std::vector<Broken<Inputs>>& table,
                        Call call) {
  Runtime runtime;
  const auto problem = random_problem(rule, valid, {}, 2, activations);
  for (const auto& broken : table) {
    Inputs inputs;
    if constexpr (std::is_same_v<Inputs, GdnInputs<float>>)
      inputs = gdn_inputs<float>(runtime, problem);
    else
      inputs = gdn2_inputs<float>(runtime, problem);
    Options options = options_of(problem);
    broken.break_it(runtime, inputs, options);
    expect_refused(broken.expected, [&] { call(runtime, inputs, options); });
  }
}

TEST(Arguments, GdnActivations) {
  using Inputs = GdnInputs<float>;
  const std::vector<Broken<Inputs>> table{
      {"raw_gate is missing", [](Runtime&, Inputs& x, Options&) { x.raw_gate = {}; }},
      {"raw_gate has shape [2, 3, 2]",
       [](Runtime& r, Inputs& x, Options&) {
         x.raw_gate = zeros(r, {2, 3, 2});
       }},
      {"g must be empty with gate softplus", [](Runtime&, Inputs& x, Options&) { x.g = x.raw_gate; }},
      {"raw_gate must be empty with gate log_decay",
       [](Runtime&, Inputs&, Options& o) { o.gate = recurrence::GateActivation::log_decay; }},
      {"raw_beta is missing", [](Runtime&, Inputs& x, Options&) { x.raw_beta = {}; }},
      {"beta must be empty with beta sigmoid", [](Runtime&, Inputs& x, Options&) { x.beta = x.raw_beta; }},
      {"raw_beta must be empty with beta plain",
       [](Runtime&, Inputs&, Options& o) { o.beta = recurrence::BetaActivation::plain; }},
      {"A_log is missing", [](Runtime&, Inputs& x, Options&) { x.A_log = {}; }},
      {"A_log has shape [2]", [](Runtime& r, Inputs& x, Options&) { x.A_log = zeros(r, {2}); }},
      {"dt_bias has shape [4, 8]",
       [](Runtime& r, Inputs& x, Options&) {
         x.dt_bias = zeros(r, {4, 8});
       }},
      {"GDN has no write gate",
       [](Runtime&, Inputs&, Options& o) { o.write_gate = recurrence::WriteGate::sigmoid; }},
      {"A_log must be empty with gate log_decay",
       [](Runtime&, Inputs& x, Options& o) {
         o.gate = recurrence::GateActivation::log_decay;
         x.g = std::exchange(x.raw_gate, {});
       }},
  };
  expect_all_refused<Inputs>(
      Rule::gdn, {.gate = Gate::softplus, .beta = Beta::sigmoid}, table,
      [](Runtime& r, const Inputs& x, const Options& o) { recurrence::gdn_forward(r, x, o); });
  for (double bound : {0.0, 0.5, -5.01, std::numeric_limits<double>::quiet_NaN()})
    expect_all_refused<Inputs>(
        Rule::gdn, {.gate = Gate::lower_bounded, .lower_bound = bound},
        {{"gate_lower_bound is", [](Runtime&, Inputs&, Options&) {}}},
        [](Runtime& r, const Inputs& x, const Options& o) { recurrence::gdn_forward(r, x, o); });
}

TEST(Arguments, Gdn2Activations) {
  using Inputs = Gdn2Inputs<float>;
  expect_all_refused<Inputs>(
      Rule::gdn2, {.gate = Gate::softplus},
      {{"raw_gate is missing", [](Runtime&, Inputs& x, Options&) { x.raw_gate = {}; }},
       {"raw_gate has shape [2, 3, 3, 8]",
        [](Runtime& r, Inputs& x, Options&) {
          x.raw_gate = zeros(r, {2, 3, 3, 8});
        }},
       {"A_log has shape [8]", [](Runtime& r, Inputs& x, Options&) { x.A_log = zeros(r, {8}); }},
       {"dt_bias has shape [4]", [](Runtime& r, Inputs& x, Options&) { x.dt_bias = zeros(r, {4}); }},
       {"g must be empty with gate softplus", [](Runtime&, Inputs& x, Options&) { x.g = x.raw_gate; }}},
      [](Runtime& r, const Inputs& x, const Options& o) { recurrence::gdn2_forward(r, x, o); });
}

TEST(Arguments, ImplementationsThatAreNotThere) {
  Runtime runtime;
  const auto inputs = gdn_inputs<float>(runtime, random_problem(Rule::gdn, valid, {}, 1));
  for (auto implementation : {recurrence::Implementation::host, recurrence::Implementation::cuda}) {
    if (recurrence::available(implementation)) continue;
    Options options;
    options.implementation = implementation;
    expect_refused("is not available in this build",
                   [&] { recurrence::gdn_forward(runtime, inputs, options); });
  }
  Options options;
  const auto result = recurrence::gdn_forward(runtime, inputs, options);
  EXPECT_TRUE(recurrence::available(result.saved.options.implementation));
  EXPECT_NE(result.saved.options.implementation, recurrence::Implementation::automatic);
}

// In device memory they are clamped, not read: that would make the host wait in every call.
#ifndef KOKKOS_ENABLE_CUDA
TEST(Arguments, Boundaries) {
  Runtime runtime;
  const std::vector<std::pair<const char*, std::vector<std::int32_t>>> table{
      {"cu_seqlens starts at 1", {1, 6}},
      {"cu_seqlens falls from 4 to 2 at index 2", {0, 4, 2, 6}},
      {"cu_seqlens ends at 7, beyond T = 6", {0, 7}},
      {"cu_seqlens starts at -1", {-1, 6}},
  };
  for (const auto& [expected, values] : table) {
    auto inputs = gdn_inputs<float>(runtime, random_problem(Rule::gdn, {.tokens = 6}, {}, 1));
    inputs.cu_seqlens = boundaries(runtime, values);
    expect_refused(expected, [&] { recurrence::gdn_forward(runtime, inputs); });
  }
}
#endif

TEST(Arguments, Backward) {
  Runtime runtime;
  const auto inputs = gdn_inputs<float>(runtime, random_problem(Rule::gdn, valid, {}, 1));
  const auto result =
      recurrence::gdn_forward(runtime, inputs, {.implementation = recurrence::Implementation::portable});
  const auto& saved = result.saved;
  expect_refused("d_o is missing", [&] { recurrence::gdn_backward(runtime, saved, Tensor<float>{}); });
  expect_refused("d_o has shape [2, 3, 4, 9]", [&] {
    recurrence::gdn_backward(runtime, saved, zeros(runtime, {2, 3, 4, 9}));
  });
  expect_refused("d_final_state has shape [2, 4, 8]", [&] {
    recurrence::gdn_backward(runtime, saved, result.o, zeros(runtime, {2, 4, 8}));
  });
  auto damaged = saved;
  damaged.inverse = {};
  expect_refused("saved.inverse has shape", [&] { recurrence::gdn_backward(runtime, damaged, result.o); });
  const auto half_inputs = gdn_inputs<bfloat16>(runtime, random_problem(Rule::gdn, valid, {}, 1));
  auto half =
      recurrence::gdn_forward(runtime, half_inputs, {.implementation = recurrence::Implementation::portable});
  half.saved.wide_inverse = {};
  expect_refused("saved.wide_inverse has shape",
                 [&] { recurrence::gdn_backward(runtime, half.saved, half.o); });
  Options options;
  options.save_for_backward = false;
  const auto unsaved = recurrence::gdn_forward(runtime, inputs, options);
  EXPECT_FALSE(unsaved.saved.inputs.q.defined());
  EXPECT_FALSE(unsaved.saved.inverse.defined());
  expect_refused("saved is empty", [&] { recurrence::gdn_backward(runtime, unsaved.saved, result.o); });
}

TEST(Arguments, Step) {
  Runtime runtime;
  const Sizes one{.batch = 2, .tokens = 1, .key_heads = 2, .value_heads = 4, .with_states = false};
  auto inputs = gdn2_inputs<float>(runtime, random_problem(Rule::gdn2, one, {}, 1));
  expect_refused("state is missing", [&] { recurrence::gdn2_step(runtime, inputs, Tensor<float>{}); });
  expect_refused("state has shape [1, 4, 8, 8]", [&] {
    recurrence::gdn2_step(runtime, inputs, zeros(runtime, {1, 4, 8, 8}));
  });
  const auto state = zeros(runtime, {2, 4, 8, 8});
  inputs.initial_state = state;
  expect_refused("initial_state must be empty", [&] { recurrence::gdn2_step(runtime, inputs, state); });
  inputs.initial_state = {};
  const auto indices = [&](const std::vector<std::int32_t>& values) { return boundaries(runtime, values); };
  expect_refused("state_indices has shape [3]", [&] {
    recurrence::gdn2_step(runtime, inputs, state, {}, indices({0, 1, 1}));
  });
  if (runs_on_host)
    expect_refused("state_indices[1] is 2, but state has 2 slots", [&] {
      recurrence::gdn2_step(runtime, inputs, state, {}, indices({0, 2}));
    });
  expect_refused("state has shape [5, 4, 8]", [&] {
    recurrence::gdn2_step(runtime, inputs, zeros(runtime, {5, 4, 8}), {}, indices({0, 1}));
  });
  inputs = gdn2_inputs<float>(runtime, random_problem(Rule::gdn2, valid, {}, 1));
  inputs.initial_state = {};
  expect_refused("q has T = 3", [&] { recurrence::gdn2_step(runtime, inputs, state); });
}

}  // namespace
