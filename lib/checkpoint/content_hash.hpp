// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace deltaport {

/// XXH3-128 of a stream of bytes: several GB/s on one core, so hashing costs nothing beside the disk.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  void update(const void* data, std::size_t bytes);
  /// Canonical (big-endian) form, 32 hexadecimal digits, of everything so far.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltaport
