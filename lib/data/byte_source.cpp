// SPDX-License-Identifier: Apache-2.0
#include "data/byte_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "data/file_descriptor.hpp"
#include "data/gzip_source.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport {

std::size_t RawFile::read(std::span<char> out) {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const ssize_t got = ::read(file_.get(), out.data() + filled, out.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    DELTAPORT_VALIDATE(got >= 0, DataError, path_, ": byte ", offset_,
                       ": cannot read: ", std::strerror(errno));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
    offset_ += got;
  }
  return filled;
}

RawFile::RawFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  DELTAPORT_VALIDATE(file_.valid(), DataError, path, ": cannot open: ", std::strerror(errno));
  struct stat status {};
  DELTAPORT_VALIDATE(::fstat(file_.get(), &status) == 0 && S_ISREG(status.st_mode), DataError, path,
                     ": not a regular file");
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

void RawFile::seek(std::int64_t offset) {
  DELTAPORT_VALIDATE(::lseek(file_.get(), offset, SEEK_SET) == offset, DataError, path_, ": byte ", offset,
                     ": cannot seek: ", std::strerror(errno));
  offset_ = offset;
}

namespace {

bool starts_as_gzip(RawFile& file) {
  char magic[2] = {};
  const bool found = file.read(magic) == 2 && std::memcmp(magic, "\x1f\x8b", 2) == 0;
  file.seek(0);
  return found;
}

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(RawFile file) : file_(std::move(file)) {}
  std::size_t read(std::span<char> out) override { return file_.read(out); }

 private:
  RawFile file_;
};

}  // namespace

bool is_gzip(const std::string& path) {
  RawFile file(path);
  return starts_as_gzip(file);
}

std::unique_ptr<ByteSource> open_text(const std::string& path, std::int64_t begin) {
  RawFile file(path);
  if (starts_as_gzip(file)) return open_gzip(std::move(file));
  DELTAPORT_VALIDATE(!path.ends_with(".gz"), DataError, path,
                     ": byte 0: not a gzip file; expected the bytes 1f 8b, as the name says");
  file.seek(begin);
  return std::make_unique<PlainSource>(std::move(file));
}

}  // namespace deltaport
