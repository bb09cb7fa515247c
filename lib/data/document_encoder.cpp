// SPDX-License-Identifier: Apache-2.0
#include "data/document_encoder.hpp"

#include <algorithm>

#include "data/checksum.hpp"
#include "deltaport/core/rng.hpp"

namespace deltaport {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;
constexpr std::size_t most_pending_bytes = std::size_t{1} << 20;
constexpr std::size_t encode_bytes = 64 * 1024;  // ids of that much text stay in the cache

/// The same for equal documents, wherever they are; the seed is fixed, so the split is a property of the
/// text.
Side side_of(std::string_view first_block, double valid_fraction) {
  if (valid_fraction <= 0.0) return Side::train;
  const Checksum::Value hash = Checksum::of(first_block);
  const double draw = uniform(stream_of("deltaport: validation split"), hash.high, hash.low);
  return draw < valid_fraction ? Side::valid : Side::train;
}

/// Bytes of a character at the end whose rest is yet to come.
std::size_t unfinished_bytes(std::string_view text) {
  constexpr std::size_t longest = 4;
  for (std::size_t back = 1; back < longest && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    if (byte >= 0xC0) return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

DocumentEncoder::DocumentEncoder(const PrepareOptions& options, const Tokenizer& tokenizer, TokenDtype dtype,
                                 UnitQueue::Output& output)
    : options_(options), tokenizer_(tokenizer), dtype_(dtype), output_(output) {}

void DocumentEncoder::begin(std::string_view first_block) {
  side_ = side_of(first_block.substr(0, text_block_bytes), options_.valid_fraction);
  utf8_ = Utf8Checker();
  document_bytes_ = 0;
  cut_ = false;
  pending_.clear();
}

void DocumentEncoder::add(std::string_view block) {
  const std::int64_t limit = options_.max_document_bytes;
  if (limit > 0) {
    const auto room = static_cast<std::size_t>(std::max<std::int64_t>(0, limit - document_bytes_));
    if (block.size() > room) {
      counts().cut_bytes += static_cast<std::int64_t>(block.size() - room);
      block = block.substr(0, room);
      cut_ = true;
    }
  }
  utf8_.accept(block);
  document_bytes_ += static_cast<std::int64_t>(block.size());
  counts().text_bytes += static_cast<std::int64_t>(block.size());
  for (; !block.empty(); block.remove_prefix(std::min(block.size(), encode_bytes)))
    store(block.substr(0, encode_bytes));
}

void DocumentEncoder::store(std::string_view text) {
  if (pending_.empty()) return store_front(text);
  pending_ += text;
  if (pending_.size() < enough_) return;
  const std::string whole = std::move(pending_);
  pending_.clear();
  store_front(whole);
}

/// Keeps what cannot be encoded yet. Where nothing can, twice as much text is waited for: no byte is looked
/// at more than a few times. Beyond a limit the text is cut where it is, for memory's sake.
void DocumentEncoder::store_front(std::string_view text) {
  ids_.clear();
  std::size_t done = tokenizer_.encode_front(text, ids_);
  if (done == 0 && text.size() >= most_pending_bytes) {
    done = text.size() - unfinished_bytes(text);
    tokenizer_.encode(text.substr(0, done), ids_);
  }
  pending_ = text.substr(done);
  enough_ = std::max(2 * pending_.size(), encode_bytes);
  store_ids();
  if (chunk_.stored.size() < chunk_bytes) return;
  output_.push(std::move(chunk_));
  chunk_ = Chunk();
  open_piece_ = false;
}

void DocumentEncoder::store_ids() {
  const std::int32_t max_id = store_tokens(dtype_, ids_, chunk_.stored);
  Piece& p = piece();
  p.tokens += static_cast<std::int64_t>(ids_.size());
  p.max_id = std::max(p.max_id, max_id);
}

Piece& DocumentEncoder::piece() {
  if (!open_piece_) chunk_.pieces.push_back({0, -1, side_, false});
  open_piece_ = true;
  return chunk_.pieces.back();
}

void DocumentEncoder::end() {
  ids_.clear();
  tokenizer_.encode(pending_, ids_);
  pending_.clear();
  ids_.push_back(tokenizer_.end_of_document());
  store_ids();
  piece().ends_document = true;
  open_piece_ = false;
  const bool well_formed = cut_ ? utf8_.valid() : utf8_.complete();  // a cut may fall inside a character
  if (!well_formed) ++counts().not_utf8;
}

void DocumentEncoder::encode(std::string_view text) {
  if (text.empty()) {
    ++counts().empty_documents;
    return;
  }
  begin(text);
  for (; !text.empty(); text.remove_prefix(std::min(text.size(), text_block_bytes)))
    add(text.substr(0, text_block_bytes));
  end();
}

void DocumentEncoder::finish() {
  output_.push(std::move(chunk_));
}

}  // namespace deltaport
