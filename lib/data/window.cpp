// SPDX-License-Identifier: Apache-2.0
#include "data/window.hpp"

#include <algorithm>

#include "deltaport/core/error.hpp"
#include "deltaport/data/sample_source.hpp"

namespace deltaport {
namespace {

/// Calls piece(begin, end, ends_document) for each non-empty piece of a document inside [first, first +
/// length).
template <class Piece>
void for_each_piece(const TokenFile& file, std::int64_t first, std::int64_t length, Piece&& piece) {
  const std::int64_t last = first + length;
  std::int64_t begin = first;
  for (std::int64_t document = file.document_of(first); begin < last; ++document) {
    const std::int64_t document_end = file.document_begin(document + 1);
    const std::int64_t end = std::min(document_end, last);
    if (end > begin) piece(begin, end, end == document_end);
    begin = std::max(begin, end);
  }
}

void check_vocabulary(const TokenFile& file, std::span<const std::int32_t> ids, std::int64_t first,
                      std::int64_t vocab_size) {
  std::int32_t low = 0;
  std::int32_t high = 0;
  for (const std::int32_t id : ids) {
    low = std::min(low, id);
    high = std::max(high, id);
  }
  if (low >= 0 && high < vocab_size) return;
  const auto bad =
      std::find_if(ids.begin(), ids.end(), [=](std::int32_t id) { return id < 0 || id >= vocab_size; });
  throw DataError(
      concat(file.bin_path(), ": token ", first + (bad - ids.begin()), ": id ", *bad,
             " is outside the model's vocabulary (0 to ", vocab_size - 1,
             "); the data were prepared with another tokenizer, or model.vocab_size is too small"));
}

}  // namespace

std::int64_t windows_of(const TokenFile& file, std::int64_t seq_len) {
  return file.tokens() == 0 ? 0 : (file.tokens() - 1) / seq_len;
}

std::int64_t read_window(const TokenFile& file, std::int64_t index, std::int64_t vocab_size,
                         std::span<std::int32_t> tokens, std::span<std::int32_t> labels, std::int64_t offset,
                         std::vector<std::int32_t>& cu_seqlens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  const std::int64_t first = index * length;
  file.read(first, tokens);
  file.read(first + 1, labels);  // the stream, shifted by one
  check_vocabulary(file, tokens, first, vocab_size);
  check_vocabulary(file, labels.last(1), first + length, vocab_size);
  std::int64_t valid = length;
  for_each_piece(file, first, length, [&](std::int64_t, std::int64_t end, bool ends_document) {
    cu_seqlens.push_back(static_cast<std::int32_t>(end - first + offset));
    if (!ends_document) return;
    labels[static_cast<std::size_t>(end - first - 1)] = ignored_label;
    --valid;
  });
  return valid;
}

std::int64_t count_labels(const TokenFile& file, std::int64_t index, std::int64_t seq_len) {
  std::int64_t valid = seq_len;
  for_each_piece(file, index * seq_len, seq_len,
                 [&](std::int64_t, std::int64_t, bool ends_document) { valid -= ends_document ? 1 : 0; });
  return valid;
}

}  // namespace deltaport
