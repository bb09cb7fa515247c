// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/permutation.hpp"

#include "deltaport/core/error.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport {

KeyedPermutation::KeyedPermutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch,
                                   std::uint64_t stream)
    : size_(size) {
  DELTAPORT_VALIDATE(size >= 1 && size <= (std::int64_t{1} << 62), Error, "permutation of ", size,
                     " elements; expected 1 to 2^62");
  while (half_bits_ < 31 && (std::int64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  const Philox4 words = philox(seed, epoch, stream);
  key_ = words.word[0] | (std::uint64_t{words.word[1]} << 32);
}

std::uint64_t KeyedPermutation::feistel(std::uint64_t value) const {
  constexpr std::uint64_t rounds = 8;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const std::uint64_t mixed = left ^ (philox(key_, right, round).word[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

std::int64_t KeyedPermutation::operator()(std::int64_t index) const {
  DELTAPORT_VALIDATE(index >= 0 && index < size_, Error, "permutation of ", size_,
                     " elements asked for number ", index);
  auto value = static_cast<std::uint64_t>(index);
  do value = feistel(value);
  while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace deltaport
