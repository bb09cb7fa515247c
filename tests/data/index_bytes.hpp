// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltaport::test {

/// Builds the bytes of a .idx by hand, field by field, independently of the library.
struct IndexBytes {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t dtype = 8;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> documents;

  static void put(std::string& out, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
  }

  std::string bytes() const {
    std::string out = magic;
    put(out, version, 8);
    put(out, dtype, 1);
    put(out, lengths.size(), 8);
    put(out, documents.size(), 8);
    for (const auto v : lengths) put(out, static_cast<std::uint64_t>(v), 4);
    for (const auto v : pointers) put(out, static_cast<std::uint64_t>(v), 8);
    for (const auto v : documents) put(out, static_cast<std::uint64_t>(v), 8);
    return out;
  }
};

/// Three sequences of 3, 0 and 2 u16 tokens; document 0 is the first, document 1 is empty, document 2 the
/// other two.
inline IndexBytes small_index() {
  return {.lengths = {3, 0, 2}, .pointers = {0, 6, 6}, .documents = {0, 1, 1, 3}};
}
inline std::string small_bin() {
  return std::string("\x01\x00\x02\x01\x03\x00\xff\xff\x05\x00", 10);
}

}  // namespace deltaport::test
