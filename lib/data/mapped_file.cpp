// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "data/file_descriptor.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  DELTAPORT_VALIDATE(file.valid(), DataError, path, ": cannot open: ", std::strerror(errno));
  struct stat status {};
  DELTAPORT_VALIDATE(::fstat(file.get(), &status) == 0, DataError, path,
                     ": cannot stat: ", std::strerror(errno));
  DELTAPORT_VALIDATE(S_ISREG(status.st_mode), DataError, path, ": not a regular file");
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  DELTAPORT_VALIDATE(address != MAP_FAILED, DataError, path, ": cannot map ", size_,
                     " bytes: ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace deltaport
