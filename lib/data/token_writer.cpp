// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/token_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "data/checksum.hpp"
#include "data/index_layout.hpp"
#include "data/output_file.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/data/metadata.hpp"

namespace deltaport {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

void check_target(const std::string& prefix, Existing existing) {
  DELTAPORT_VALIDATE(!prefix.empty() && !prefix.ends_with('/'), ConfigError, "output prefix \"", prefix,
                     "\" names no file; give PREFIX of PREFIX.bin and PREFIX.idx");
  make_folder_of(prefix);
  if (existing == Existing::replace) return;
  for (const char* suffix : {".bin", ".idx"})
    DELTAPORT_VALIDATE(::access((prefix + suffix).c_str(), F_OK) != 0, ConfigError, prefix, suffix,
                       ": the output exists already; choose another prefix or replace it (--force)");
}

}  // namespace

struct TokenWriter::Impl {
  Impl(const std::string& p, TokenDtype d, Existing existing, std::int64_t limit)
      : prefix((check_target(p, existing), p)),
        dtype(d),
        max_sequence_tokens(limit),
        bin(p + ".bin"),
        idx(p + ".idx"),
        lengths(p),
        documents_spool(p) {
    DELTAPORT_VALIDATE(limit >= 1 && limit <= (std::int64_t{1} << 31) - 1, ConfigError,
                       "max_sequence_tokens is ", limit, "; expected 1 to 2^31 - 1");
  }

  void append_stored(std::span<const std::byte> stored);
  void end_sequence();
  void write_index();
  void write_metadata(const Tokenizer& tokenizer);

  std::string prefix;
  TokenDtype dtype;
  std::int64_t max_sequence_tokens;
  OutputFile bin;
  OutputFile idx;
  std::optional<OutputFile> metadata;
  SpoolFile lengths;          // i32 per sequence
  SpoolFile documents_spool;  // i64 per document: the sequence at which it ends
  Checksum checksum;
  std::vector<std::byte> scratch;
  std::int64_t sequence_tokens = 0;  // of the open sequence
  bool open_document = false;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t documents = 0;
  std::int32_t max_id = -1;
  bool sealed = false;
};

void TokenWriter::Impl::append_stored(std::span<const std::byte> stored) {
  DELTAPORT_VALIDATE(!sealed, Error, prefix, ": token writer is sealed; nothing can be appended");
  const std::int64_t item = size_of(dtype);
  const auto bytes = static_cast<std::int64_t>(stored.size());
  DELTAPORT_VALIDATE(bytes % item == 0, ShapeError, prefix, ": ", bytes, " bytes are no whole number of ",
                     name_of(dtype), " tokens");
  bin.write(stored);
  checksum.add(stored);
  open_document = true;
  std::int64_t left = bytes / item;
  tokens += left;
  while (left > 0) {
    if (sequence_tokens == max_sequence_tokens) end_sequence();
    const std::int64_t taken = std::min(left, max_sequence_tokens - sequence_tokens);
    sequence_tokens += taken;
    left -= taken;
  }
}

void TokenWriter::Impl::end_sequence() {
  lengths.append(bytes_of(static_cast<std::int32_t>(sequence_tokens)));
  ++sequences;
  sequence_tokens = 0;
}

void TokenWriter::Impl::write_index() {
  using namespace index_layout;
  idx.write(std::as_bytes(std::span(magic)));
  idx.write(bytes_of(version));
  idx.write(bytes_of(static_cast<std::uint8_t>(dtype)));
  idx.write(bytes_of(static_cast<std::uint64_t>(sequences)));
  idx.write(bytes_of(static_cast<std::uint64_t>(documents + 1)));
  lengths.rewind();
  for (auto block = lengths.next(); !block.empty(); block = lengths.next()) idx.write(block);
  lengths.rewind();
  std::int64_t pointer = 0;
  for (auto block = lengths.next(); !block.empty(); block = lengths.next())
    for (std::size_t at = 0; at < block.size(); at += 4) {
      idx.write(bytes_of(pointer));
      pointer += load<std::int32_t>(block.data() + at) * size_of(dtype);
    }
  idx.write(bytes_of(std::int64_t{0}));
  documents_spool.rewind();
  for (auto block = documents_spool.next(); !block.empty(); block = documents_spool.next()) idx.write(block);
}

void TokenWriter::Impl::write_metadata(const Tokenizer& tokenizer) {
  TokenFileMetadata m;
  m.tokenizer = tokenizer.name();
  m.tokenizer_hash = tokenizer.hash();
  m.vocab_size = tokenizer.vocab_size();
  m.end_of_document = tokenizer.end_of_document();
  m.documents = documents;
  m.tokens = tokens;
  m.max_id = max_id;
  m.dtype = name_of(dtype);
  m.xxh3 = checksum.hex();
  metadata.emplace(prefix + ".meta.json");
  const std::string json = to_json(m);
  metadata->write(std::as_bytes(std::span(json)));
  metadata->sync();
}

TokenWriter::TokenWriter(const std::string& prefix, TokenDtype dtype, Existing existing,
                         std::int64_t max_sequence_tokens)
    : impl_(std::make_unique<Impl>(prefix, dtype, existing, max_sequence_tokens)) {}
TokenWriter::~TokenWriter() = default;
TokenWriter::TokenWriter(TokenWriter&&) noexcept = default;

std::int64_t TokenWriter::tokens() const {
  return impl_->tokens;
}
std::int64_t TokenWriter::documents() const {
  return impl_->documents;
}

void TokenWriter::append(std::span<const std::int32_t> ids) {
  impl_->scratch.clear();
  const std::int32_t max_id = store_tokens(impl_->dtype, ids, impl_->scratch);
  append_stored(impl_->scratch, max_id);
}

void TokenWriter::append_stored(std::span<const std::byte> stored, std::int32_t max_id) {
  impl_->append_stored(stored);
  impl_->max_id = std::max(impl_->max_id, max_id);
}

void TokenWriter::end_document() {
  DELTAPORT_VALIDATE(!impl_->sealed, Error, impl_->prefix,
                     ": token writer is sealed; nothing can be appended");
  impl_->end_sequence();
  impl_->documents_spool.append(bytes_of(impl_->sequences));
  ++impl_->documents;
  impl_->open_document = false;
}

void TokenWriter::seal(const Tokenizer* tokenizer) {
  if (impl_->sealed) return;
  DELTAPORT_VALIDATE(!impl_->open_document, Error, impl_->prefix, ": the last document was not ended");
  impl_->write_index();
  if (tokenizer != nullptr) impl_->write_metadata(*tokenizer);
  impl_->bin.sync();
  impl_->idx.sync();
  impl_->sealed = true;
}

void TokenWriter::publish(const Tokenizer* tokenizer) {
  seal(tokenizer);
  // A reader that comes in between must find no index rather than one of other tokens.
  ::unlink((impl_->prefix + ".idx").c_str());
  if (!impl_->metadata) ::unlink((impl_->prefix + ".meta.json").c_str());
  sync_folder(impl_->prefix);
  impl_->bin.publish();
  if (impl_->metadata) impl_->metadata->publish();
  impl_->idx.publish();
  sync_folder(impl_->prefix);
}

}  // namespace deltaport
