// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/token_dtype.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "deltaport/core/error.hpp"

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read in place");

namespace deltaport {

std::int64_t size_of(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::u8:
      return 1;
    case TokenDtype::u16:
      return 2;
    case TokenDtype::i32:
      return 4;
    case TokenDtype::i64:
      return 8;
  }
  throw Error("size_of: not a token dtype");
}

std::string_view name_of(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::u8:
      return "u8";
    case TokenDtype::u16:
      return "u16";
    case TokenDtype::i32:
      return "i32";
    case TokenDtype::i64:
      return "i64";
  }
  throw Error("name_of: not a token dtype");
}

std::int64_t largest_id(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::u8:
      return std::numeric_limits<std::uint8_t>::max();
    case TokenDtype::u16:
      return std::numeric_limits<std::uint16_t>::max();
    case TokenDtype::i32:
    case TokenDtype::i64:
      return std::numeric_limits<std::int32_t>::max();
  }
  throw Error("largest_id: not a token dtype");
}

TokenDtype dtype_for_vocab(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenDtype::u16 : TokenDtype::i32;
}

namespace {

template <class Stored>
void store_as(std::span<const std::int32_t> ids, std::byte* out) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto stored = static_cast<Stored>(ids[i]);
    std::memcpy(out + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

}  // namespace

std::int32_t store_tokens(TokenDtype dtype, std::span<const std::int32_t> ids, std::vector<std::byte>& out) {
  if (ids.empty()) return -1;
  std::int32_t low = 0;
  std::int32_t high = 0;
  for (const std::int32_t id : ids) {
    low = std::min(low, id);
    high = std::max(high, id);
  }
  DELTAPORT_VALIDATE(low >= 0 && high <= largest_id(dtype), DataError, "token id ", low < 0 ? low : high,
                     " cannot be stored as ", name_of(dtype), " (0 to ", largest_id(dtype), ")");
  const std::size_t begin = out.size();
  out.resize(begin + ids.size() * static_cast<std::size_t>(size_of(dtype)));
  switch (dtype) {
    case TokenDtype::u8:
      store_as<std::uint8_t>(ids, out.data() + begin);
      break;
    case TokenDtype::u16:
      store_as<std::uint16_t>(ids, out.data() + begin);
      break;
    case TokenDtype::i32:
      store_as<std::int32_t>(ids, out.data() + begin);
      break;
    case TokenDtype::i64:
      store_as<std::int64_t>(ids, out.data() + begin);
      break;
  }
  return high;
}

}  // namespace deltaport
