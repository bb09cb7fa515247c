// SPDX-License-Identifier: Apache-2.0
#include "model/prefill_chunks.hpp"

#include <algorithm>
#include <limits>

#include "deltaport/core/error.hpp"

namespace deltaport {

std::vector<PrefillChunk> prefill_chunks(const std::vector<std::vector<std::int32_t>>& sequences,
                                         std::int64_t chunk_tokens) {
  DELTAPORT_VALIDATE(chunk_tokens >= 1 && chunk_tokens <= std::numeric_limits<std::int32_t>::max(),
                     ShapeError, "prefill: chunks of ", chunk_tokens, " tokens, expected 1 to 2^31 - 1");
  std::vector<PrefillChunk> chunks;
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    const auto& all = sequences[n];
    DELTAPORT_VALIDATE(!all.empty(), ShapeError, "prefill: sequence ", n, " has no tokens");
    for (auto from = all.begin(); from != all.end();) {
      if (chunks.empty() || static_cast<std::int64_t>(chunks.back().tokens.size()) == chunk_tokens)
        chunks.push_back({static_cast<std::int64_t>(n), {0}, {}});
      PrefillChunk& chunk = chunks.back();
      const auto room = chunk_tokens - static_cast<std::int64_t>(chunk.tokens.size());
      const auto to = from + std::min<std::int64_t>(room, all.end() - from);
      chunk.tokens.insert(chunk.tokens.end(), from, to);
      chunk.cu_seqlens.push_back(static_cast<std::int32_t>(chunk.tokens.size()));
      from = to;
    }
  }
  return chunks;
}

}  // namespace deltaport
