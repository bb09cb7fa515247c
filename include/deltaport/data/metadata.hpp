// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace deltaport {

/// The side-car PREFIX.meta.json of a prepared data set.
struct TokenFileMetadata {
  std::string tokenizer;       ///< name, e.g. "byte"
  std::string tokenizer_hash;  ///< Tokenizer::hash()
  std::int64_t vocab_size = 0;
  std::int64_t end_of_document = 0;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t max_id = -1;
  std::string dtype;
  std::string xxh3;  ///< XXH3-128 of PREFIX.bin, 32 hex digits
};

std::string to_json(const TokenFileMetadata& metadata);

/// Nothing when PREFIX.meta.json is not there (other tools write none). Throws DataError when it is damaged.
std::optional<TokenFileMetadata> read_metadata(const std::string& prefix);

}  // namespace deltaport
