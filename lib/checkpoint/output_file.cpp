// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "checkpoint/content_hash.hpp"
#include "checkpoint/file_system.hpp"

namespace deltaport::files {

int run_hook(Operation operation, const Path& path);

namespace {
constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
}

struct OutputFile::Impl {
  Path path;
  FileOrigin origin;
  int fd = -1;
  std::vector<std::byte> buffer;
  std::uint64_t written = 0;
  ContentHash hash;

  void put(const std::byte* data, std::size_t bytes) {
    hash.update(data, bytes);
    if (const int refusal = run_hook(Operation::write, path)) raise_system(origin, "write", path, refusal);
    written += bytes;
    while (bytes > 0) {
      const ssize_t n = ::write(fd, data, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) raise_system(origin, "write", path, errno);
      data += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }
  void flush() {
    if (!buffer.empty()) put(buffer.data(), buffer.size());
    buffer.clear();
  }
};

OutputFile::OutputFile(Path path, FileOrigin origin) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->origin = origin;
  if (const int refusal = run_hook(Operation::create, impl_->path))
    raise_system(origin, "create", impl_->path, refusal);
  impl_->fd = ::open(impl_->path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (impl_->fd < 0) raise_system(origin, "create", impl_->path, errno);
  impl_->buffer.reserve(buffer_bytes);
}

OutputFile::~OutputFile() {
  if (impl_->fd >= 0) ::close(impl_->fd);
}

void OutputFile::write(const void* data, std::uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  if (impl_->buffer.size() + bytes > buffer_bytes) impl_->flush();
  while (bytes > buffer_bytes) {
    impl_->put(from, buffer_bytes);
    from += buffer_bytes;
    bytes -= buffer_bytes;
  }
  impl_->buffer.insert(impl_->buffer.end(), from, from + bytes);
}

FileDigest OutputFile::finish() {
  impl_->flush();
  if (const int refusal = run_hook(Operation::sync_file, impl_->path))
    raise_system(impl_->origin, "flush", impl_->path, refusal);
  if (::fdatasync(impl_->fd) != 0) raise_system(impl_->origin, "flush", impl_->path, errno);
  const int fd = impl_->fd;
  impl_->fd = -1;
  // Network file systems may report a failed write only here.
  if (::close(fd) != 0) raise_system(impl_->origin, "close", impl_->path, errno);
  return {impl_->written, impl_->hash.hex()};
}

FileDigest write_text(const Path& path, std::string_view text) {
  const Path part = path.string() + ".part";
  OutputFile file(part);
  file.write(text.data(), text.size());
  const FileDigest digest = file.finish();
  rename_path(part, path);
  return digest;
}

}  // namespace deltaport::files
