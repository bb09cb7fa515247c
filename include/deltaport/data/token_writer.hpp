// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "deltaport/data/token_dtype.hpp"
#include "deltaport/data/tokenizer.hpp"

namespace deltaport {

/// What to do when the output is already there.
enum class Existing { refuse, replace };

/// Writes PREFIX.bin, PREFIX.idx and PREFIX.meta.json (see TokenFile) in one pass with bounded memory,
/// whatever the number of tokens and documents. Everything goes to temporary files beside the target;
/// publish() renames them, PREFIX.idx last, so a data set either is complete or has no .idx. Destroying a
/// writer that was not published removes its files. A document longer than `max_sequence_tokens` becomes
/// several sequences (the format's lengths are int32). Not thread-safe. Throws DataError when the file system
/// refuses, ConfigError when the output exists.
class TokenWriter {
 public:
  TokenWriter(const std::string& prefix, TokenDtype dtype, Existing existing,
              std::int64_t max_sequence_tokens = std::int64_t{1} << 30);
  ~TokenWriter();
  TokenWriter(TokenWriter&&) noexcept;

  /// Appends to the current document.
  void append(std::span<const std::int32_t> ids);
  /// The same for tokens already in file form (store_tokens); `max_id` is their largest id.
  void append_stored(std::span<const std::byte> stored, std::int32_t max_id);
  /// Ends the current document, which may be empty.
  void end_document();

  std::int64_t tokens() const;
  std::int64_t documents() const;

  /// Completes the temporary files and brings them to disk; nothing can be appended afterwards. `tokenizer`
  /// (may be null: no side-car) describes the ids in PREFIX.meta.json.
  void seal(const Tokenizer* tokenizer);
  /// Gives the files their names; seals first when that was not done.
  void publish(const Tokenizer* tokenizer);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaport
