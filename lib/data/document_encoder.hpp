// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/unit_queue.hpp"
#include "deltaport/data/prepare.hpp"
#include "deltaport/data/tokenizer.hpp"
#include "deltaport/data/utf8.hpp"

namespace deltaport {

/// Bytes of a document that decide about it (validation split, binary or not), and the block in which text is
/// read.
inline constexpr std::size_t text_block_bytes = 512 * 1024;

/// Turns the documents of one unit, given block by block, into chunks.
class DocumentEncoder {
 public:
  DocumentEncoder(const PrepareOptions& options, const Tokenizer& tokenizer, TokenDtype dtype,
                  UnitQueue::Output& output);

  /// Begins a document; `first_block` holds its first text_block_bytes, or all of it if it is shorter.
  void begin(std::string_view first_block);
  void add(std::string_view block);
  /// Appends the end-of-document.
  void end();
  /// A whole document.
  void encode(std::string_view text);
  /// Hands over what is left.
  void finish();

  /// Counters that travel with the next chunk.
  PrepareSummary& counts() { return chunk_.counts; }

 private:
  void store(std::string_view text);
  void store_front(std::string_view text);
  void store_ids();
  Piece& piece();

  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  const TokenDtype dtype_;
  UnitQueue::Output& output_;
  Chunk chunk_;
  std::vector<std::int32_t> ids_;
  std::string pending_;     // text whose ids depend on what follows
  std::size_t enough_ = 0;  // bytes of it that are worth another try
  Utf8Checker utf8_;
  std::int64_t document_bytes_ = 0;
  bool cut_ = false;
  Side side_ = Side::train;
  bool open_piece_ = false;
};

}  // namespace deltaport
