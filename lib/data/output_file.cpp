// SPDX-License-Identifier: Apache-2.0
#include "data/output_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

void write_all(int file, std::span<const std::byte> bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    DELTAPORT_VALIDATE(written >= 0, DataError, name, ": cannot write: ", std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

SpoolFile::SpoolFile(const std::string& beside) : name_(beside + ".spool.XXXXXX") {
  file_ = FileDescriptor(::mkostemp(name_.data(), O_CLOEXEC));
  DELTAPORT_VALIDATE(file_.valid(), DataError, beside,
                     ": cannot create a temporary file beside it: ", std::strerror(errno));
  ::unlink(name_.c_str());
  buffer_.reserve(buffer_bytes);
}

void SpoolFile::flush() {
  write_all(file_.get(), buffer_, name_);
  buffer_.clear();
}

void SpoolFile::append(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= buffer_bytes) flush();
}

void SpoolFile::rewind() {
  flush();
  DELTAPORT_VALIDATE(::lseek(file_.get(), 0, SEEK_SET) == 0, DataError, name_,
                     ": cannot rewind: ", std::strerror(errno));
}

std::span<const std::byte> SpoolFile::next() {
  buffer_.resize(buffer_bytes);
  std::size_t filled = 0;
  while (filled < buffer_bytes) {
    const ssize_t got = ::read(file_.get(), buffer_.data() + filled, buffer_bytes - filled);
    if (got < 0 && errno == EINTR) continue;
    DELTAPORT_VALIDATE(got >= 0, DataError, name_, ": cannot read back: ", std::strerror(errno));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  buffer_.resize(filled);
  return buffer_;
}

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {
  FileDescriptor file(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  DELTAPORT_VALIDATE(file.valid(), DataError, temporary_, ": cannot create: ", std::strerror(errno));
  // File systems without locks answer something else than EWOULDBLOCK; there the check is left out.
  const bool busy = ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  struct stat opened {};
  struct stat named {};
  const bool same = ::fstat(file.get(), &opened) == 0 && ::stat(temporary_.c_str(), &named) == 0 &&
                    opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  DELTAPORT_VALIDATE(!busy && same, DataError, temporary_, ": another process is writing this file");
  DELTAPORT_VALIDATE(::ftruncate(file.get(), 0) == 0, DataError, temporary_,
                     ": cannot truncate: ", std::strerror(errno));
  file_ = std::move(file);
  buffer_.reserve(buffer_bytes);
}

OutputFile::~OutputFile() {
  if (file_.valid() && !published_) ::unlink(temporary_.c_str());
}

void OutputFile::flush() {
  write_all(file_.get(), buffer_, temporary_);
  buffer_.clear();
}

void OutputFile::write(std::span<const std::byte> bytes) {
  size_ += static_cast<std::int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > buffer_bytes) flush();
  if (bytes.size() > buffer_bytes) return write_all(file_.get(), bytes, temporary_);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void OutputFile::sync() {
  flush();
  // EINVAL: the file system has no notion of it.
  DELTAPORT_VALIDATE(::fsync(file_.get()) == 0 || errno == EINVAL, DataError, temporary_,
                     ": cannot bring to disk: ", std::strerror(errno));
}

void OutputFile::publish() {
  DELTAPORT_VALIDATE(::rename(temporary_.c_str(), path_.c_str()) == 0, DataError, path_, ": cannot rename ",
                     temporary_, " to it: ", std::strerror(errno));
  published_ = true;
}

void sync_folder(const std::string& path) {
  const FileDescriptor folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) ::fsync(folder.get());
}

void make_folder_of(const std::string& path) {
  std::error_code failure;
  std::filesystem::create_directories(folder_of(path), failure);
  DELTAPORT_VALIDATE(!failure, DataError, folder_of(path), ": cannot create the folder: ", failure.message());
}

}  // namespace deltaport
