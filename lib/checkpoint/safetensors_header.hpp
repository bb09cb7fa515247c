// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "deltaport/checkpoint/safetensors.hpp"

namespace deltaport::safetensors {

inline constexpr std::uint64_t length_bytes = 8;
inline constexpr std::uint64_t max_header_bytes = 100'000'000;

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;
};

/// Bytes that a tensor of this type and shape takes. Returns false on overflow or when they do not fill whole
/// bytes.
bool checked_bytes(FileDtype dtype, const std::vector<std::int64_t>& shape, std::uint64_t& bytes);

/// Parses the JSON text and checks types, sizes and layout against `data_bytes` bytes of data; `file` and
/// `origin` are for messages. Tensors come back in file order.
Header parse_header(std::string_view json, std::uint64_t data_bytes, const std::string& file,
                    FileOrigin origin);

/// The JSON text of a header, padded with spaces to a multiple of 8 bytes.
std::string format_header(const Header& header, FileOrigin origin);

}  // namespace deltaport::safetensors
