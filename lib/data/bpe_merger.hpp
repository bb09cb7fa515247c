// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/bpe_file.hpp"

namespace deltaport {

/// Answers for pieces seen before: one cache line each, the latest of those that share a line. One per
/// thread.
class PieceCache {
 public:
  static constexpr std::size_t most_bytes = 30, most_ids = 8;
  struct alignas(64) Line {
    std::uint8_t bytes = 0;  ///< 0: empty
    std::uint8_t ids = 0;
    char text[most_bytes] = {};
    std::int32_t id[most_ids] = {};
  };
  PieceCache() : lines_(line_count) {}
  Line& line(std::string_view piece);

 private:
  static constexpr std::size_t line_count = std::size_t{1} << 15;
  std::vector<Line> lines_;
};

/// Byte-pair encoding of one piece of text: its bytes, then again and again the two neighbours whose rule
/// comes first in the list (the leftmost of equals) joined to one. Immutable.
class BpeMerger {
 public:
  explicit BpeMerger(const BpeFile& file);

  /// Appends the ids of a piece that is not empty.
  void encode(std::string_view piece, PieceCache& cache, std::vector<std::int32_t>& ids) const;

 private:
  struct Rule {
    std::int32_t rank;
    std::int32_t result;
  };
  static constexpr std::int32_t no_rule = 0x7FFFFFFF;
  struct Slot {
    std::uint64_t pair;
    Rule rule;
  };
  Rule find(std::int32_t left, std::int32_t right) const;
  void merge(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_short(std::vector<std::int32_t>& symbols) const;
  void merge_long(std::vector<std::int32_t>& symbols) const;
  std::int32_t whole_token(std::string_view piece) const;

  std::vector<std::int32_t> byte_id_;
  std::vector<Slot> slots_;  // open addressing
  std::uint64_t mask_ = 0;
  std::vector<std::int32_t> whole_;  // open addressing over tokens_, for ignore_merges
  std::vector<std::string> tokens_;
  std::uint64_t whole_mask_ = 0;
};

}  // namespace deltaport
