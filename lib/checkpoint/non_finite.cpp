// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/non_finite.hpp"

#include <cstring>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

// The exponent's bits all set, and those of the fraction: none for an infinity.
template <class Bits>
NonFinite count(const std::byte* raw, std::uint64_t bytes, Bits exponent, Bits fraction) {
  NonFinite found;
  for (std::uint64_t at = 0; at + sizeof(Bits) <= bytes; at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, raw + at, sizeof bits);
    if ((bits & exponent) != exponent) continue;
    ++((bits & fraction) != 0 ? found.nans : found.infinities);
  }
  return found;
}

std::string are(std::int64_t count, const char* what) {
  return concat(count, count == 1 ? " is " : " are ", what);
}

}  // namespace

NonFinite& NonFinite::operator+=(const NonFinite& more) {
  nans += more.nans;
  infinities += more.infinities;
  return *this;
}

std::string NonFinite::str() const {
  std::string text = "of its values ";
  if (nans > 0) text += are(nans, "NaN");
  if (nans > 0 && infinities > 0) text += " and ";
  if (infinities > 0) text += are(infinities, "infinite");
  return text;
}

NonFinite count_non_finite(FileDtype dtype, const std::byte* raw, std::uint64_t bytes) {
  switch (dtype) {
    case FileDtype::f16:
      return count<std::uint16_t>(raw, bytes, 0x7C00, 0x03FF);
    case FileDtype::bf16:
      return count<std::uint16_t>(raw, bytes, 0x7F80, 0x007F);
    case FileDtype::f32:
      return count<std::uint32_t>(raw, bytes, 0x7F800000, 0x007FFFFF);
    case FileDtype::f64:
      return count<std::uint64_t>(raw, bytes, 0x7FF0000000000000, 0x000FFFFFFFFFFFFF);
    default:
      return {};
  }
}

}  // namespace deltaport
