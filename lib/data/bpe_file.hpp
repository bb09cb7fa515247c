// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json says, as far as byte-level BPE goes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltaport {

enum class Normalization { none, nfc, nfd, nfkc, nfkd };

struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;  ///< looked for after normalisation
};

struct MergeRule {
  std::int32_t left, right, result;
};

struct BpeFile {
  std::vector<std::string> tokens;    ///< bytes by id; empty where no token has the id
  std::vector<std::int32_t> byte_id;  ///< the token of each of the 256 bytes
  std::vector<MergeRule> merges;      ///< in the order of their ranks
  std::vector<AddedToken> added;
  std::vector<std::string> patterns;  ///< each cuts the pieces of the one before; matches and gaps are pieces
  Normalization normalization = Normalization::none;
  bool ignore_merges = false;  ///< a piece that is a token is that token
};

/// Reads `text`, the content of tokenizer.json; `path` is for messages. Throws DataError naming every part
/// that this reader does not know: it never computes something else instead.
BpeFile parse_bpe_file(const std::string& text, const std::string& path);

}  // namespace deltaport
