// SPDX-License-Identifier: Apache-2.0
#include "data/checksum.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace deltaport {

struct Checksum::State {
  XXH3_state_t xxh3;  // over-aligned; operator new honours that
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh3);
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;

void Checksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

Checksum::Value Checksum::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return {hash.low64, hash.high64};
}

Checksum::Value Checksum::of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

std::string Checksum::hex() const {
  const Value v = value();
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(v.high),
                static_cast<unsigned long long>(v.low));
  return text;
}

}  // namespace deltaport
