// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checkpoint/file_system.hpp"

namespace deltaport::files {

/// A regular file opened for positioned reads. Safe to read from several threads.
class InputFile {
 public:
  InputFile(Path path, FileOrigin origin);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const Path& path() const { return path_; }
  /// Size when it was opened.
  std::uint64_t bytes() const { return bytes_; }
  /// Copies bytes [offset, offset + bytes); a file that has become shorter is an error.
  void read(std::uint64_t offset, std::uint64_t bytes, void* to) const;

 private:
  Path path_;
  FileOrigin origin_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
};

}  // namespace deltaport::files
