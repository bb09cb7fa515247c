// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace deltaport {

/// Bytes of a text file, front to back, decompressed.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `out` and returns the bytes put there: fewer only at the end. Throws DataError naming file and
  /// offset.
  virtual std::size_t read(std::span<char> out) = 0;
};

/// Content is compressed when it begins with gzip's 1f 8b, which no UTF-8 text does. `begin` is where to
/// start in a plain file (must be 0 for a compressed one). A name ending in .gz promises gzip; other content
/// there is an error.
std::unique_ptr<ByteSource> open_text(const std::string& path, std::int64_t begin = 0);

/// Whether the content begins as gzip does.
bool is_gzip(const std::string& path);

}  // namespace deltaport
