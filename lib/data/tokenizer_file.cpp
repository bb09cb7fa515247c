// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "data/bpe_file.hpp"
#include "data/checksum.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/data/tokenizer.hpp"
#ifdef DELTAPORT_HAVE_TOKENIZER
#include "data/bpe_tokenizer.hpp"
#endif

namespace deltaport {

#ifdef DELTAPORT_HAVE_TOKENIZER

namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  DELTAPORT_VALIDATE(!file.is_open() || file.bad() || !text.empty(), DataError, path,
                     ": the file is empty; a tokenizer.json (or its folder) or \"byte\" is needed");
  DELTAPORT_VALIDATE(
      file.is_open() && !file.bad(), DataError, path,
      ": no such file, or it cannot be read; a tokenizer.json (or its folder) or \"byte\" is needed");
  return text;
}

std::int32_t id_after_documents(const BpeFile& file, const std::string& asked, const std::string& path) {
  const std::string wanted = asked.empty() ? "<|endoftext|>" : asked;
  std::string names;
  for (const AddedToken& token : file.added) {
    if (token.text == wanted) return token.id;
    if (token.special) names += (names.empty() ? "" : ", ") + token.text;
  }
  throw DataError(concat(path, ": no added token ", wanted,
                         " to end documents with; special ones are: ", names.empty() ? "none" : names));
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer(const TokenizerFile& file) {
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(file.path, ignored);
  const std::string path =
      folder ? (std::filesystem::path(file.path) / "tokenizer.json").string() : file.path;
  const std::string text = content_of(path);
  const BpeFile parsed = parse_bpe_file(text, path);
  const std::int32_t end = id_after_documents(parsed, file.end_of_document, path);
  Checksum checksum;
  checksum.add(text);
  const bool recognised = file.special_tokens == SpecialTokens::recognised;
  checksum.add(
      concat("special tokens ", recognised ? "recognised" : "as text", ", documents end with ", end));
  return std::make_unique<BpeTokenizer>(parsed, checksum.hex(), end, file.special_tokens, path);
}

#else

std::unique_ptr<Tokenizer> read_tokenizer(const TokenizerFile& file) {
  throw ConfigError(concat(file.path,
                           ": this build cannot read a tokenizer.json, for it has no PCRE2 and utf8proc; "
                           "configure with DELTAPORT_ENABLE_TOKENIZER=ON, or use the tokenizer \"byte\""));
}

#endif

}  // namespace deltaport
