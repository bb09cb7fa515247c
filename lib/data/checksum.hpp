// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace deltaport {

/// Streaming XXH3-128.
class Checksum {
 public:
  struct Value {
    std::uint64_t low;
    std::uint64_t high;
  };

  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  Value value() const;
  /// Of all of `text` at once.
  static Value of(std::string_view text);
  /// 32 digits, high word first (as xxhsum prints it).
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltaport
