// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace deltaport {

/// A keyed bijection of 0 .. size - 1 with O(1) memory and no set-up: an 8-round Feistel network over the
/// next power of four, with Philox as the round function, walked until the value falls inside (Black and
/// Rogaway, "Ciphers with arbitrary finite domains", 2002). Depends on (seed, epoch, stream) alone.
class KeyedPermutation {
 public:
  /// size in 1 .. 2^62. Throws Error otherwise.
  KeyedPermutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch, std::uint64_t stream);

  std::int64_t size() const { return size_; }
  /// Image of index, 0 <= index < size (throws Error otherwise). Fewer than four rounds of the network on
  /// average.
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t feistel(std::uint64_t value) const;

  std::int64_t size_;
  int half_bits_ = 1;
  std::uint64_t key_;
};

}  // namespace deltaport
