// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "deltaport/core/dtype.hpp"

namespace deltaport::recurrence {

enum class Implementation {
  automatic,  ///< cuda or host, where this build has it and it can do the call, else portable
  reference,  ///< token by token; obviously right, slow
  portable,   ///< chunked (WY form), Kokkos TeamPolicy, any execution space
  host,       ///< chunked, vectorised for CPUs; execution spaces of the host
  cuda        ///< tensor cores; Kokkos::Cuda
};
/// auto, reference, portable, host, cuda
std::string_view name_of(Implementation implementation);
/// Whether this build and its execution space have the implementation at all; it may still refuse sizes.
bool available(Implementation implementation);

/// What is done to each row of q and k first.
enum class QkNorm {
  none,
  l2  ///< x / sqrt(sum x^2 + 1e-6)
};

/// How the log decay g comes in. The other two take the pre-activation `raw_gate` instead of `g`.
enum class GateActivation {
  log_decay,  ///< g itself
  softplus,   ///< g = -exp(A_log) softplus(raw_gate + dt_bias)
  lower_bounded  ///< g = gate_lower_bound sigmoid(exp(A_log) (raw_gate + dt_bias)); without A_log, exp(A_log) = 1
};

/// beta of GDN (then given as `raw_beta`) and the erase gate b of GDN2 (then b is the pre-activation).
enum class BetaActivation {
  plain,
  sigmoid,
  doubled_sigmoid  ///< 2 sigmoid: lets the eigenvalues 1 - beta be negative
};

/// The write gate w of GDN2 (then w is the pre-activation).
enum class WriteGate { plain, sigmoid };

/// What forward keeps for backward.
enum class Keep {
  inputs,  ///< its inputs; `portable` also its chunk matrices
  /// Also what `cuda` makes of each chunk before the state comes in, which backward makes again otherwise: less time for
  /// more memory, see gdn_prepared_bytes(). The results have the same bits. To the others it is the same as `inputs`.
  preparation
};

struct Options {
  double scale = 0.0;   ///< factor on q; 0 means K^-0.5
  int chunk_size = 64;  ///< 16, 32 or 64; what `reference` ignores and others may refuse
  Implementation implementation = Implementation::automatic;
  bool output_final_state = false;
  /// Keep what backward needs. Without it `saved` of the result is empty.
  bool save_for_backward = true;
  Keep keep = Keep::inputs;
  QkNorm qk_norm = QkNorm::none;
  GateActivation gate = GateActivation::log_decay;
  double gate_lower_bound = -5.0;  ///< of GateActivation::lower_bounded, in [-5, 0)
  BetaActivation beta = BetaActivation::plain;
  WriteGate write_gate = WriteGate::plain;  ///< GDN2 only
};

/// The implementation that a chunked call gets for values of `dtype` with these head dimensions: the one that options
/// name, or what `automatic` stands for in this build.
Implementation implementation_of(Dtype dtype, std::int64_t key_dim, std::int64_t value_dim,
                                 const Options& options);

/// Bytes that Keep::preparation adds to what a chunked call keeps, for N sequences of T tokens in all (B = 1): an upper bound
/// that does not depend on where they begin, with a chunk of 64 tokens for each sequence. 0 where the implementation keeps
/// no more. With K = V = 128 in halves, 664 bytes per token and value head of GDN, and 1,168 per token and gate head of GDN2.
std::int64_t gdn_prepared_bytes(Dtype dtype, std::int64_t tokens, std::int64_t sequences,
                                std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim,
                                const Options& options);
std::int64_t gdn2_prepared_bytes(Dtype dtype, std::int64_t tokens, std::int64_t sequences,
                                 std::int64_t gate_heads, std::int64_t key_dim, std::int64_t value_dim,
                                 const Options& options);

}  // namespace deltaport::recurrence
