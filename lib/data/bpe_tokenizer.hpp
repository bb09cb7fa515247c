// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/added_token_finder.hpp"
#include "data/bpe_merger.hpp"
#include "data/text_splitter.hpp"
#include "deltaport/data/tokenizer.hpp"

namespace deltaport {

/// The tokenizer of a tokenizer.json. Bytes that are not UTF-8 are pieces of their own, so that they come
/// back.
class BpeTokenizer final : public Tokenizer {
 public:
  using Tokenizer::encode;
  BpeTokenizer(const BpeFile& file, std::string hash, std::int32_t end_of_document,
               SpecialTokens special_tokens, const std::string& path);

  std::string_view name() const override { return "tokenizer.json"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int32_t end_of_document() const override { return end_of_document_; }
  std::string hash() const override { return hash_; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::size_t encode_front(std::string_view text, std::vector<std::int32_t>& ids) const override;
  void append_bytes(std::int32_t id, std::string& bytes) const override;

 private:
  /// What encoding needs of its own in each thread.
  struct Scratch {
    std::unique_ptr<TextSplitter::Workspace> workspace;
    PieceCache cache;
    std::string normalized;
  };
  class Lease;
  static constexpr std::size_t no_stop = ~std::size_t{0};

  /// Encodes up to byte `stop`, where a piece has to begin; false when none does.
  bool encode_until(Scratch& scratch, std::string_view text, std::size_t stop,
                    std::vector<std::int32_t>& ids) const;
  /// Text without added tokens that are looked for as it stands.
  bool encode_raw(Scratch& scratch, std::string_view text, std::size_t stop,
                  std::vector<std::int32_t>& ids) const;
  /// Well-formed text.
  bool encode_run(Scratch& scratch, std::string_view text, std::size_t stop,
                  std::vector<std::int32_t>& ids) const;
  bool encode_pieces(Scratch& scratch, std::string_view text, std::size_t stop,
                     std::vector<std::int32_t>& ids) const;

  std::string hash_;
  std::int32_t end_of_document_;
  Normalization normalization_;
  AddedTokenFinder raw_tokens_, normalized_tokens_;
  TextSplitter splitter_;
  BpeMerger merger_;
  std::string bytes_;                   // of all tokens
  std::vector<std::uint32_t> offsets_;  // of each id's
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace deltaport
