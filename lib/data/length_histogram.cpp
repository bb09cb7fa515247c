// SPDX-License-Identifier: Apache-2.0
#include "data/length_histogram.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace deltaport {

LengthHistogram length_histogram(const TokenFile& file) {
  LengthHistogram h;
  if (file.documents() == 0) return h;
  std::array<std::int64_t, 65> counts{};  // by the number of bits of the length
  h.shortest = file.tokens();
  std::int64_t begin = 0;
  for (std::int64_t d = 0; d < file.documents(); ++d) {
    const std::int64_t end = file.document_begin(d + 1);
    const std::int64_t length = end - begin;
    begin = end;
    ++counts[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)))];
    h.shortest = std::min(h.shortest, length);
    h.longest = std::max(h.longest, length);
  }
  h.mean = static_cast<double>(file.tokens()) / static_cast<double>(file.documents());
  const auto bits = [](std::int64_t length) { return std::bit_width(static_cast<std::uint64_t>(length)); };
  for (auto b = bits(h.shortest); b <= bits(h.longest); ++b) {
    const std::int64_t first = b == 0 ? 0 : std::int64_t{1} << (b - 1);
    h.bins.push_back({first, b == 0 ? 0 : 2 * first - 1, counts[static_cast<std::size_t>(b)]});
  }
  return h;
}

}  // namespace deltaport
