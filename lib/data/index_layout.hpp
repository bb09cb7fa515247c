// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "deltaport/data/token_dtype.hpp"

namespace deltaport::index_layout {

/// PREFIX.idx, little-endian, no padding: magic, u64 version, u8 dtype code, u64 sequence count S, u64
/// document count D, then i32 lengths [S] (tokens), i64 pointers [S] (bytes into PREFIX.bin), i64 document
/// indices [D] (sequence at which each document begins, last one S).
inline constexpr char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::uint64_t version = 1;
inline constexpr std::size_t version_offset = 9;
inline constexpr std::size_t dtype_offset = 17;
inline constexpr std::size_t sequence_count_offset = 18;
inline constexpr std::size_t document_count_offset = 26;
inline constexpr std::size_t header_bytes = 34;

/// The arrays begin at offset 34, so nothing is aligned.
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// Where the arrays are, once the header is known to fit the file.
struct Index {
  TokenDtype dtype;
  std::int64_t sequences;
  std::int64_t documents;  // D - 1
  const std::byte* lengths;
  const std::byte* pointers;
  const std::byte* document_indices;

  std::int64_t length(std::int64_t i) const { return load<std::int32_t>(lengths + 4 * i); }
  std::int64_t pointer(std::int64_t i) const { return load<std::int64_t>(pointers + 8 * i); }
  std::int64_t document_index(std::int64_t i) const { return load<std::int64_t>(document_indices + 8 * i); }
};

/// Checks every field of `idx` against itself and the size of the .bin. Throws DataError naming `path`, the
/// byte offset and what was expected.
Index parse(std::span<const std::byte> idx, const std::string& path, std::int64_t bin_bytes,
            const std::string& bin_path);

}  // namespace deltaport::index_layout
