// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace deltaport {

/// Bytes straight from the operating system: growing moves pages instead of copying them, and freeing gives
/// them back at once (a thread's heap would keep them). Throws OutOfMemory.
class GrowingBuffer {
 public:
  explicit GrowingBuffer(std::size_t bytes);
  ~GrowingBuffer();
  GrowingBuffer(const GrowingBuffer&) = delete;
  GrowingBuffer& operator=(const GrowingBuffer&) = delete;

  char* data() { return data_; }
  const char* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Keeps the content; pointers into the old memory become invalid.
  void grow(std::size_t bytes);

 private:
  char* data_;
  std::size_t size_;
};

}  // namespace deltaport
