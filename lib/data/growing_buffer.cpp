// SPDX-License-Identifier: Apache-2.0
#include "data/growing_buffer.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "deltaport/core/error.hpp"

namespace deltaport {

GrowingBuffer::GrowingBuffer(std::size_t bytes) : size_(bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  DELTAPORT_VALIDATE(memory != MAP_FAILED, OutOfMemory, "cannot map ", bytes,
                     " bytes: ", std::strerror(errno));
  data_ = static_cast<char*>(memory);
}

GrowingBuffer::~GrowingBuffer() {
  ::munmap(data_, size_);
}

void GrowingBuffer::grow(std::size_t bytes) {
  void* memory = ::mremap(data_, size_, bytes, MREMAP_MAYMOVE);
  DELTAPORT_VALIDATE(memory != MAP_FAILED, OutOfMemory, "cannot grow ", size_, " bytes to ", bytes, ": ",
                     std::strerror(errno));
  data_ = static_cast<char*>(memory);
  size_ = bytes;
}

}  // namespace deltaport
