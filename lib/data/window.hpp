// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deltaport/data/token_file.hpp"

namespace deltaport {

/// Windows of a token stream (see SampleSource): window k is tokens [k L, (k + 1) L), labels reach one token
/// further. Number of windows: floor((tokens - 1) / L).
std::int64_t windows_of(const TokenFile& file, std::int64_t seq_len);

/// Reads window `index` and appends it to a run: tokens and labels [L], the window's sequence ends, shifted
/// by `offset`, to cu_seqlens. Throws DataError for an id outside 0 .. vocab_size - 1. Returns the number of
/// labels.
std::int64_t read_window(const TokenFile& file, std::int64_t index, std::int64_t vocab_size,
                         std::span<std::int32_t> tokens, std::span<std::int32_t> labels, std::int64_t offset,
                         std::vector<std::int32_t>& cu_seqlens);

/// The number of labels alone, from the document boundaries.
std::int64_t count_labels(const TokenFile& file, std::int64_t index, std::int64_t seq_len);

}  // namespace deltaport
