// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/token_file.hpp"

#include <unistd.h>

#include <limits>

#include "data/index_layout.hpp"
#include "data/mapped_file.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

/// A frequent slip: the name of one of the two files instead of what they share.
void check_prefix(const std::string& prefix) {
  DELTAPORT_VALIDATE(!prefix.empty(), DataError,
                     "empty path of a data set; give PREFIX of PREFIX.bin and PREFIX.idx");
  if (::access((prefix + ".idx").c_str(), F_OK) == 0) return;
  for (const char* suffix : {".bin", ".idx"})
    DELTAPORT_VALIDATE(!prefix.ends_with(suffix), DataError, prefix,
                       ".idx: no such file; a data set is named without ", suffix, ": ",
                       prefix.substr(0, prefix.size() - 4));
}

template <class Stored>
void widen(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::int32_t>(index_layout::load<Stored>(from + i * sizeof(Stored)));
}

}  // namespace

struct TokenFile::Impl {
  explicit Impl(const std::string& p)
      : prefix((check_prefix(p), p)),
        idx(p + ".idx"),
        bin(p + ".bin"),
        index(index_layout::parse(idx.bytes(), idx.path(), static_cast<std::int64_t>(bin.bytes().size()),
                                  bin.path())),
        tokens(static_cast<std::int64_t>(bin.bytes().size()) / size_of(index.dtype)) {}

  void read_wide(std::int64_t first, std::span<std::int32_t> out) const {
    constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
    const std::byte* from = bin.bytes().data() + 8 * first;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto id = index_layout::load<std::int64_t>(from + 8 * i);
      DELTAPORT_VALIDATE(id >= 0 && id <= limit, DataError, bin.path(), ": byte ",
                         8 * (first + static_cast<std::int64_t>(i)), ": token id ", id, "; expected 0 to ",
                         limit);
      out[i] = static_cast<std::int32_t>(id);
    }
  }

  std::string prefix;
  MappedFile idx;
  MappedFile bin;
  index_layout::Index index;
  std::int64_t tokens;
};

TokenFile::TokenFile(const std::string& prefix) : impl_(std::make_unique<Impl>(prefix)) {}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&&) noexcept = default;

const std::string& TokenFile::prefix() const {
  return impl_->prefix;
}
const std::string& TokenFile::bin_path() const {
  return impl_->bin.path();
}
const std::string& TokenFile::idx_path() const {
  return impl_->idx.path();
}
TokenDtype TokenFile::dtype() const {
  return impl_->index.dtype;
}
std::int64_t TokenFile::tokens() const {
  return impl_->tokens;
}
std::int64_t TokenFile::sequences() const {
  return impl_->index.sequences;
}
std::int64_t TokenFile::documents() const {
  return impl_->index.documents;
}
std::span<const std::byte> TokenFile::bin_bytes() const {
  return impl_->bin.bytes();
}
std::span<const std::byte> TokenFile::idx_bytes() const {
  return impl_->idx.bytes();
}

std::int64_t TokenFile::document_begin(std::int64_t document) const {
  const auto& index = impl_->index;
  DELTAPORT_VALIDATE(document >= 0 && document <= index.documents, ShapeError, idx_path(), ": document ",
                     document, " asked for; there are ", index.documents);
  const std::int64_t sequence = index.document_index(document);
  return sequence == index.sequences ? impl_->tokens : index.pointer(sequence) / size_of(index.dtype);
}

std::int64_t TokenFile::document_of(std::int64_t token) const {
  DELTAPORT_VALIDATE(token >= 0 && token < impl_->tokens, ShapeError, bin_path(), ": token ", token,
                     " asked for; there are ", impl_->tokens);
  // The last document that begins at or before the token; empty ones before it begin at the same place.
  std::int64_t low = 0;
  std::int64_t high = impl_->index.documents;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  DELTAPORT_VALIDATE(first >= 0 && count <= impl_->tokens && first <= impl_->tokens - count, ShapeError,
                     bin_path(), ": tokens ", first, " to ", first, " + ", count, " asked for; there are ",
                     impl_->tokens);
  if (count == 0) return;
  const std::byte* from = impl_->bin.bytes().data() + first * size_of(dtype());
  switch (dtype()) {
    case TokenDtype::u8:
      return widen<std::uint8_t>(from, out);
    case TokenDtype::u16:
      return widen<std::uint16_t>(from, out);
    case TokenDtype::i32:
      return widen<std::int32_t>(from, out);
    case TokenDtype::i64:
      return impl_->read_wide(first, out);
  }
}

}  // namespace deltaport
