// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/content_hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deltaport {

struct ContentHash::State {
  XXH3_state_t xxh;  // needs 64-byte alignment, which C++17's new gives
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}
ContentHash::~ContentHash() = default;

void ContentHash::update(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(&state_->xxh, data, bytes);
}

std::string ContentHash::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_->xxh));
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : canonical.digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace deltaport
