// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "checkpoint/content_hash.hpp"

namespace deltaport::files {

InputFile::InputFile(Path path, FileOrigin origin) : path_(std::move(path)), origin_(origin) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) raise_system(origin_, "open", path_, errno);
  struct stat info {};
  const int status = ::fstat(fd_, &info);
  if (status != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    raise(origin_, concat("cannot read ", path_.string(), ": not a regular file"));
  }
  bytes_ = static_cast<std::uint64_t>(info.st_size);
}

InputFile::~InputFile() {
  ::close(fd_);
}

void InputFile::read(std::uint64_t offset, std::uint64_t bytes, void* to) const {
  auto* target = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const std::size_t request =
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes, std::uint64_t{1} << 30));
    const ssize_t n = ::pread(fd_, target, request, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) raise_system(origin_, concat("read byte ", offset, " of"), path_, errno);
    if (n == 0)
      raise(origin_,
            concat(path_.string(), ": truncated: the file ended at byte ", offset, " while being read"));
    target += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
}

std::string read_text(const Path& path, std::uint64_t limit_bytes) {
  const InputFile file(path, FileOrigin::checkpoint);
  if (file.bytes() > limit_bytes)
    raise(FileOrigin::checkpoint,
          concat(path.string(), ": ", file.bytes(), " bytes, expected at most ", limit_bytes));
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, file.bytes(), text.data());
  return text;
}

FileDigest digest(const Path& path) {
  const InputFile file(path, FileOrigin::checkpoint);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  ContentHash hash;
  for (std::uint64_t at = 0; at < file.bytes();) {
    const std::uint64_t bytes = std::min<std::uint64_t>(buffer.size(), file.bytes() - at);
    file.read(at, bytes, buffer.data());
    hash.update(buffer.data(), static_cast<std::size_t>(bytes));
    at += bytes;
  }
  return {file.bytes(), hash.hex()};
}

std::string hash_text(std::string_view text) {
  ContentHash hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

}  // namespace deltaport::files
