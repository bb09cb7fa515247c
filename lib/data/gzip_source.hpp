// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/byte_source.hpp"
#include "data/file_descriptor.hpp"

namespace deltaport {

/// A regular file opened for reading; errors name it and the offset.
class RawFile {
 public:
  explicit RawFile(const std::string& path);
  /// Fills `out`; fewer bytes only at the end.
  std::size_t read(std::span<char> out);
  void seek(std::int64_t offset);
  const std::string& path() const { return path_; }
  std::int64_t offset() const { return offset_; }

 private:
  std::string path_;
  FileDescriptor file_;
  std::int64_t offset_ = 0;
};

/// All members of a gzip file, one after the other; checksums and lengths are checked. Zero bytes may pad the
/// end, as tape tools leave them. Throws DataError in a build without zlib.
std::unique_ptr<ByteSource> open_gzip(RawFile file);

}  // namespace deltaport
