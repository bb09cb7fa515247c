// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "deltaport/core/context.hpp"

namespace deltaport {

/// The next tokens of sequences [first, first + M) of a decoding state, packed as one run of T tokens.
struct Continuation {
  Sequences sequences;  ///< whose M sequences are the parts of this run; positions begin at 0
  std::vector<std::int32_t> cu_seqlens;  ///< [M + 1] on the host
  std::int64_t first = 0;                ///< the state's sequence that the run's first one is

  std::int64_t count() const { return sequences.count(); }
  std::int64_t tokens() const { return cu_seqlens.back(); }
  /// Tokens of the run's sequence m.
  std::int64_t length(std::int64_t m) const {
    return cu_seqlens[static_cast<std::size_t>(m) + 1] - cu_seqlens[static_cast<std::size_t>(m)];
  }
};

/// Builds the device tensors. Throws ShapeError unless boundaries start at 0 and ascend. Fences the compute
/// stream.
inline Continuation make_continuation(Runtime& runtime, std::vector<std::int32_t> cu_seqlens,
                                      std::int64_t first) {
  Continuation run;
  run.sequences = make_sequences(runtime, cu_seqlens, cu_seqlens.back());
  run.cu_seqlens = std::move(cu_seqlens);
  run.first = first;
  return run;
}

/// Throws ShapeError unless the run has `rows` tokens and its sequences are among the `available` ones of a
/// state.
inline void check_continuation(const std::string& where, const Continuation& run, std::int64_t rows,
                               std::int64_t available) {
  DELTAPORT_VALIDATE(run.tokens() == rows, ShapeError, where, ": the run has ", run.tokens(),
                     " tokens, x has ", rows);
  DELTAPORT_VALIDATE(run.first >= 0 && run.first + run.count() <= available, ShapeError, where,
                     ": sequences [", run.first, ", ", run.first + run.count(), ") of a state of ",
                     available);
}

}  // namespace deltaport
