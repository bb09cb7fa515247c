// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// Both recurrences and their adjoints in plain double-precision C++, written from the equations and apart
/// from the library, so that the implementations have something to be wrong against.
namespace deltaport::oracle {

enum class Rule { gdn, gdn2 };
enum class Gate { log_decay, softplus, lower_bounded };
enum class Beta { plain, sigmoid, doubled_sigmoid };

/// What is done to the inputs first.
struct Activations {
  bool l2_norm = false;
  Gate gate = Gate::log_decay;
  double lower_bound = -5.0;
  Beta beta = Beta::plain;     // of beta, or of GDN2's b
  bool write_sigmoid = false;  // of GDN2's w
};

/// Sizes, inputs and incoming gradients of one call. R is double, or std::complex<double> for the complex
/// step.
template <class R>
struct Problem {
  Rule rule = Rule::gdn;
  std::int64_t batch = 1, tokens = 1;
  int key_heads = 1, value_heads = 1, gate_heads = 1, key_dim = 1, value_dim = 1;
  double scale = 1.0;
  Activations activations;
  std::vector<std::int32_t> cu_seqlens;  // empty: `batch` sequences of `tokens`
  std::vector<R> q, k, v;
  std::vector<R> g;                        // GDN [B, T, HV], GDN2 [B, T, gate heads, K]; raw when activated
  std::vector<R> beta;                     // GDN; raw when activated
  std::vector<R> b, w;                     // GDN2; raw when activated
  std::vector<R> A_log, dt_bias;           // one per head of g, one per channel of all heads; empty: zero
  std::vector<R> initial_state;            // empty: zero
  std::vector<double> d_o, d_final_state;  // d_final_state empty: zero

  std::int64_t sequences() const {
    return cu_seqlens.empty() ? batch : static_cast<std::int64_t>(cu_seqlens.size()) - 1;
  }
  std::int64_t begin(std::int64_t n) const {
    return cu_seqlens.empty() ? n * tokens : cu_seqlens[static_cast<std::size_t>(n)];
  }
  std::int64_t end(std::int64_t n) const {
    return cu_seqlens.empty() ? (n + 1) * tokens : cu_seqlens[static_cast<std::size_t>(n) + 1];
  }
};

/// Outputs or gradients by the names of the library's fields.
using Values = std::map<std::string, std::vector<double>>;

template <class R>
struct Forward {
  std::vector<R> o, final_state;
};
template <class R>
Forward<R> forward(const Problem<R>& problem);

/// The same problem with every activation carried out.
template <class R>
Problem<R> activated(const Problem<R>& problem);

/// o, final_state and all gradients: dq dk dv, dg (d_raw_gate when activated), dbeta (d_raw_beta when
/// activated) | db dw, dinitial_state, dA_log, ddt_bias.
Values solve(const Problem<double>& problem);

}  // namespace deltaport::oracle
