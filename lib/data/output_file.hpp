// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/file_descriptor.hpp"

namespace deltaport {

/// Buffered, unnamed temporary file in the folder of `beside`: gone when closed, also after a crash.
class SpoolFile {
 public:
  explicit SpoolFile(const std::string& beside);
  void append(std::span<const std::byte> bytes);
  /// Ends writing; next() then returns the content block by block, an empty one at the end.
  void rewind();
  std::span<const std::byte> next();

 private:
  void flush();
  std::string name_;
  FileDescriptor file_;
  std::vector<std::byte> buffer_;
};

/// A file that appears under its name only when complete: written as PATH.tmp, which is locked against a
/// second writer, brought to disk, then renamed. Destroyed unpublished, it removes PATH.tmp. Throws DataError
/// naming the file.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&&) = delete;

  void write(std::span<const std::byte> bytes);
  std::int64_t size() const { return size_; }
  /// Flushes and waits for the disk.
  void sync();
  /// Renames; call sync_folder() afterwards.
  void publish();

 private:
  void flush();
  std::string path_;
  std::string temporary_;
  FileDescriptor file_;
  std::vector<std::byte> buffer_;
  std::int64_t size_ = 0;
  bool published_ = false;
};

/// Makes renames and removals in the folder of `path` durable.
void sync_folder(const std::string& path);
/// Creates the folder of `path` and those above it.
void make_folder_of(const std::string& path);

}  // namespace deltaport
