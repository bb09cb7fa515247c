// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltaport {

/// Text to token ids and back. Implementations are immutable and may be shared by threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view name() const = 0;
  /// Ids are 0 .. vocab_size() - 1.
  virtual std::int64_t vocab_size() const = 0;
  /// The id that follows each document's last token.
  virtual std::int32_t end_of_document() const = 0;
  /// Identifies the exact mapping: equal hashes mean equal ids for every text.
  virtual std::string hash() const = 0;

  /// Appends the ids of `text`, without an end-of-document.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// For text that goes on: appends the ids of its front, as far as they do not depend on what follows, and
  /// returns the bytes that they stand for; what is left goes before the next part. 0 when there is no such
  /// front.
  virtual std::size_t encode_front(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// Appends the bytes of one id: none for end-of-document, U+FFFD for an id outside the vocabulary (a
  /// model's padded vocabulary may be larger). The bytes of one id need not be whole characters.
  virtual void append_bytes(std::int32_t id, std::string& bytes) const = 0;

  std::vector<std::int32_t> encode(std::string_view text) const;
  /// The exact bytes.
  std::string decode_bytes(std::span<const std::int32_t> ids) const;
  /// Always valid UTF-8: each maximal ill-formed part becomes one U+FFFD.
  std::string decode(std::span<const std::int32_t> ids) const;
};

/// 256 bytes and end-of-document = 256. Every byte string, text or not, can be encoded and comes back
/// unchanged; the ids of a concatenation are the concatenation of the ids.
class ByteTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;
  std::string_view name() const override { return "byte"; }
  std::int64_t vocab_size() const override { return 257; }
  std::int32_t end_of_document() const override { return 256; }
  std::string hash() const override;
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::size_t encode_front(std::string_view text, std::vector<std::int32_t>& ids) const override;
  void append_bytes(std::int32_t id, std::string& bytes) const override;
};

/// The tokenizer of that name ("byte"). Throws DataError for another.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name);

/// What text like "<|im_start|>" becomes.
enum class SpecialTokens {
  recognised,  ///< the special token of that name
  as_text      ///< ordinary text: for documents that others wrote
};

struct TokenizerFile {
  std::string path;  ///< a tokenizer.json, or the folder that holds it
  SpecialTokens special_tokens = SpecialTokens::as_text;
  /// The added token that follows each document; empty: "<|endoftext|>".
  std::string end_of_document = {};
};

/// A byte-level BPE tokenizer as Hugging Face's tokenizers computes it: normalisation to NFC (or NFD, NFKC,
/// NFKD), the file's own patterns, merges, added tokens. Added tokens that are not special are always
/// recognised. Text that is not UTF-8 keeps its bytes. decode(encode(x)) is the normal form of x. Throws
/// DataError naming everything in the file that would be computed otherwise; ConfigError when this build has
/// no PCRE2 and utf8proc (DELTAPORT_ENABLE_TOKENIZER).
std::unique_ptr<Tokenizer> read_tokenizer(const TokenizerFile& file);
/// "byte", or a file or folder as in TokenizerFile::path.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerFile& file);

}  // namespace deltaport
