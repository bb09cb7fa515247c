// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace deltaport {

/// How one token id is stored in PREFIX.bin. The values are the dtype codes of the Megatron index format; its
/// other codes (2 i8, 3 i16, 6 f64, 7 f32) hold no token ids and are refused.
enum class TokenDtype : std::uint8_t { u8 = 1, i32 = 4, i64 = 5, u16 = 8 };

/// Bytes of one token.
std::int64_t size_of(TokenDtype dtype);
/// "u8", "u16", "i32" or "i64".
std::string_view name_of(TokenDtype dtype);
/// Largest token id that fits (ids are int32 in memory, whatever the file holds).
std::int64_t largest_id(TokenDtype dtype);
/// The format's own rule: u16 below a vocabulary of 65500, else i32.
TokenDtype dtype_for_vocab(std::int64_t vocab_size);

/// Appends `ids` to `out` as they are stored (little-endian). Returns the largest id, -1 when there are none.
/// Throws DataError for an id that is negative or does not fit.
std::int32_t store_tokens(TokenDtype dtype, std::span<const std::int32_t> ids, std::vector<std::byte>& out);

}  // namespace deltaport
