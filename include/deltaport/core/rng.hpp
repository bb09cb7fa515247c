// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <string_view>

namespace deltaport {

/// Four 32-bit words.
struct Philox4 {
  std::uint32_t word[4];
};

/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a
/// keyed bijection of 128-bit counters. Stateless, so every draw depends on (key, counter) alone and never on
/// thread count.
KOKKOS_INLINE_FUNCTION Philox4 philox(std::uint64_t key, std::uint64_t counter_low,
                                      std::uint64_t counter_high) {
  Philox4 c{{static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
             static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)}};
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c.word[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c.word[2];
    c = Philox4{{static_cast<std::uint32_t>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<std::uint32_t>(p1),
                 static_cast<std::uint32_t>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// Uniform in (0, 1): never 0, so that its logarithm is finite.
KOKKOS_INLINE_FUNCTION double uniform_open(std::uint32_t word) {
  return (word + 0.5) * (1.0 / 4294967296.0);
}

/// Standard normal draw number `element` of stream (key, stream), by Box-Muller from one Philox block.
KOKKOS_INLINE_FUNCTION double normal(std::uint64_t key, std::uint64_t stream, std::uint64_t element) {
  const Philox4 r = philox(key, element, stream);
  const double radius = Kokkos::sqrt(-2.0 * Kokkos::log(uniform_open(r.word[0])));
  return radius * Kokkos::cos(6.283185307179586 * uniform_open(r.word[1]));
}

/// Uniform draw in (0, 1) number `element` of stream (key, stream).
KOKKOS_INLINE_FUNCTION double uniform(std::uint64_t key, std::uint64_t stream, std::uint64_t element) {
  return uniform_open(philox(key, element, stream).word[0]);
}

/// 64-bit FNV-1a of a name: the stream identity of a tensor, the same on every machine.
constexpr std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace deltaport
