// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace deltaport {

/// A part of many sequences laid end to end: the parts of sequences first, first + 1, ... none of them empty.
struct PrefillChunk {
  std::int64_t first = 0;
  std::vector<std::int32_t> cu_seqlens;  ///< where the parts begin, and where the last one ends
  std::vector<std::int32_t> tokens;
};

/// All tokens in order, chunk_tokens to a chunk (fewer in the last). Throws ShapeError for a sequence without
/// tokens and for chunk_tokens outside [1, 2^31).
std::vector<PrefillChunk> prefill_chunks(const std::vector<std::vector<std::int32_t>>& sequences,
                                         std::int64_t chunk_tokens);

}  // namespace deltaport
