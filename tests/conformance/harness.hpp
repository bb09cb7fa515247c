// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conformance/oracle.hpp"
#include "deltaport/recurrence/recurrence.hpp"

/// Bridges the oracle's problems and the library: random problems, calls, comparisons.
namespace deltaport::conformance {

using oracle::Activations;
using oracle::Beta;
using oracle::Gate;
using oracle::Problem;
using oracle::Rule;
using oracle::Values;

/// How log decays are drawn: uniformly in [2 * mean, 0]; about that size where they come from an activation.
struct Gates {
  double mean = -0.5;
};

/// Sizes of a random problem.
struct Sizes {
  std::int64_t batch = 1, tokens = 1;
  int key_heads = 1, value_heads = 1, key_dim = 8, value_dim = 8;
  int gate_heads = 0;  ///< GDN2; 0 means value_heads
  std::vector<std::int32_t> cu_seqlens = {};
  bool with_states = true;  ///< initial state and gradient of the final state
};

/// Keys and queries of unit length (any length with l2_norm), everything rounded to float so that both
/// precisions see the same numbers.
Problem<double> random_problem(Rule rule, const Sizes& sizes, Gates gates, std::uint64_t seed,
                               const Activations& activations = {});
/// What is of type T in the library, rounded to it.
template <class T>
Problem<double> rounded(Problem<double> problem);

/// The library's options for a problem, implementation and chunk size left open.
recurrence::Options options_of(const Problem<double>& problem);
/// solve(problem), kept for the next call with the same problem.
const Values& solution(const Problem<double>& problem);

/// The same problem restricted to sequence n, alone.
Problem<double> only_sequence(const Problem<double>& problem, std::int64_t n);
/// Token t of every sequence, without states.
Problem<double> only_token(const Problem<double>& problem, std::int64_t t);
/// The part of a token-wise or state-wise result that belongs to sequence n.
std::vector<double> slice(const Problem<double>& problem, const std::string& name,
                          const std::vector<double>& values, std::int64_t n);

enum class Pass { forward, forward_and_backward };

/// Runs the library; fields by name as the oracle gives them.
template <class T>
Values run(Runtime& runtime, const Problem<double>& problem, const recurrence::Options& options,
           Pass pass = Pass::forward_and_backward);

/// Token by token through the single step, from the problem's initial state: o and final_state. No
/// cu_seqlens. With `slots`, sequence n has its state in slot slots[n] of a larger tensor, which final_state
/// then is; its other slots hold 7.
template <class T>
Values run_steps(Runtime& runtime, const Problem<double>& problem,
                 const std::vector<std::int32_t>& slots = {});

/// rms(x - expected) / rms(expected); infinite when x is not finite.
double relative_error(const std::vector<double>& x, const std::vector<double>& expected);

/// rms(x - expected); infinite when x is not finite.
double rms_difference(const std::vector<double>& x, const std::vector<double>& expected);

/// Every element has the same bits (NaN equals NaN of the same bits).
bool same_bits(const std::vector<double>& a, const std::vector<double>& b);

template <class T>
recurrence::GdnInputs<T> gdn_inputs(Runtime& runtime, const Problem<double>& problem);
template <class T>
recurrence::Gdn2Inputs<T> gdn2_inputs(Runtime& runtime, const Problem<double>& problem);

}  // namespace deltaport::conformance
