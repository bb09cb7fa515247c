// SPDX-License-Identifier: Apache-2.0
// Every change that a checkpoint makes on disk goes through here, one call per operation, so that tests can
// stop the process before any of them or make any of them fail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deltaport/checkpoint/safetensors.hpp"

namespace deltaport::files {

using Path = std::filesystem::path;

/// Throws the error type of `origin` with this message.
[[noreturn]] void raise(FileOrigin origin, const std::string& message);
/// The same for a failed system call: "cannot <what> <path>: <text of error_number>", with advice for a full
/// disk.
[[noreturn]] void raise_system(FileOrigin origin, std::string_view what, const Path& path, int error_number);

enum class Operation {
  make_directory,
  create,
  write,
  sync_file,
  rename,
  sync_directory,
  remove_file,
  remove_directory,
  measure_space
};

/// Called before each operation. Returns 0 to let it happen, or the errno it shall fail with.
using Hook = std::function<int(Operation, const Path&)>;
/// Installs a hook for all threads (empty: none). For tests only; not to be called while files are written.
void set_hook(Hook hook);

void make_directory(const Path& path);
/// make_directory for every missing folder of the path.
void make_directories(const Path& path);
void rename_path(const Path& from, const Path& to, FileOrigin origin = FileOrigin::checkpoint);
/// Makes the names inside a folder durable.
void sync_directory(const Path& path, FileOrigin origin = FileOrigin::checkpoint);
/// Missing files are no error.
void remove_file(const Path& path, FileOrigin origin = FileOrigin::checkpoint);
/// Removes a folder with all it holds; the file `COMMIT` goes first and durably, so that a half-removed
/// checkpoint is never taken for a whole one. Missing folders are no error.
void remove_tree(const Path& path);
/// Bytes that an ordinary user may still write to the file system of `path`.
std::uint64_t available_bytes(const Path& path);

/// A new file written front to back through a 1 MiB buffer, hashed on the way.
class OutputFile {
 public:
  OutputFile(Path path, FileOrigin origin = FileOrigin::checkpoint);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::uint64_t bytes);
  /// Flushes to the disk and closes. Nothing may be written afterwards.
  FileDigest finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes `text` to `path`.part, flushes and renames. The folder is flushed by the caller.
FileDigest write_text(const Path& path, std::string_view text);
/// A whole small file. Throws beyond `limit_bytes`.
std::string read_text(const Path& path, std::uint64_t limit_bytes = std::uint64_t{256} << 20);
/// Size and hash of a file's content.
FileDigest digest(const Path& path);
/// Hash of bytes in memory, as in FileDigest::xxh3_128.
std::string hash_text(std::string_view text);

}  // namespace deltaport::files
