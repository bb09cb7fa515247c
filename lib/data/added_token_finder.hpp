// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/bpe_file.hpp"

namespace deltaport {

/// Finds added tokens in text: the leftmost, of those the longest.
class AddedTokenFinder {
 public:
  struct Found {
    std::size_t begin, end;
    std::int32_t id;
  };
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  std::size_t longest_bytes() const { return longest_; }
  /// The next one at or behind `from`; false when there is none.
  bool find(std::string_view text, std::size_t from, Found& found) const;

 private:
  std::vector<AddedToken> tokens_;             // by first byte, longest first
  std::array<std::uint32_t, 257> begin_of_{};  // the tokens of each first byte
  std::vector<unsigned char> first_bytes_;     // that any token has
  std::size_t longest_ = 0;
};

}  // namespace deltaport
