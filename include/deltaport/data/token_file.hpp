// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "deltaport/data/token_dtype.hpp"

namespace deltaport {

/// Read-only view of a tokenized data set in Megatron's format: PREFIX.bin (tokens back to back) and
/// PREFIX.idx (sequence lengths, byte pointers, document ends). Both files are memory-mapped; nothing is
/// copied. A document is one or more sequences. The order of samples that Megatron derives from its own
/// shuffle index is not reproduced.
///
/// Everything is checked on opening: magic, version, dtype code, file sizes, lengths, pointers, document
/// indices. Any bytes whatever give either a usable data set or a DataError that names file, byte offset and
/// what was expected. The files must not be shortened while they are open. All const members may be called
/// from several threads.
class TokenFile {
 public:
  /// Opens PREFIX.bin and PREFIX.idx. Throws DataError.
  explicit TokenFile(const std::string& prefix);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;

  const std::string& prefix() const;
  const std::string& bin_path() const;
  const std::string& idx_path() const;
  TokenDtype dtype() const;
  std::int64_t tokens() const;
  std::int64_t sequences() const;
  std::int64_t documents() const;

  /// Stream position of the first token of document d, 0 <= d <= documents(); the last is tokens().
  std::int64_t document_begin(std::int64_t document) const;
  /// The (non-empty) document that holds stream position `token`. O(log documents).
  std::int64_t document_of(std::int64_t token) const;

  /// Copies tokens [first, first + out.size()) of the stream. Throws ShapeError outside the stream and
  /// DataError for an i64 token that does not fit int32.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

  /// The raw bytes of the two files, for checksums.
  std::span<const std::byte> bin_bytes() const;
  std::span<const std::byte> idx_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaport
