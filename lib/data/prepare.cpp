// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/prepare.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "data/byte_source.hpp"
#include "data/document_encoder.hpp"
#include "data/jsonl_reader.hpp"
#include "data/unit_queue.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

using Clock = std::chrono::steady_clock;

// Two spellings of one prefix ("d", "./d", a link to its folder) give the same path here.
std::filesystem::path canonical_prefix(const std::string& prefix) {
  std::error_code ignored;
  const auto absolute = std::filesystem::absolute(prefix, ignored);
  const auto canonical = std::filesystem::weakly_canonical(absolute, ignored);
  return ignored ? absolute.lexically_normal() : canonical;
}

void check_options(const PrepareOptions& o) {
  DELTAPORT_VALIDATE(!o.inputs.empty(), ConfigError, "no input; name files or folders");
  DELTAPORT_VALIDATE(!o.extensions.empty(), ConfigError,
                     "no extensions; give at least one, or \"*\" for all files");
  DELTAPORT_VALIDATE(!o.text_field.empty(), ConfigError, "the name of the text field is empty");
  DELTAPORT_VALIDATE(o.max_document_bytes >= 0, ConfigError, "max_document_bytes is ", o.max_document_bytes,
                     "; expected 1 or more, or 0 for no limit");
  DELTAPORT_VALIDATE(o.threads >= 0, ConfigError, "threads is ", o.threads,
                     "; expected 1 or more, or 0 for all");
  DELTAPORT_VALIDATE(o.valid_fraction >= 0.0 && o.valid_fraction < 1.0, ConfigError, "validation fraction ",
                     o.valid_fraction, "; expected more than 0 and less than 1");
  DELTAPORT_VALIDATE((o.valid_fraction > 0.0) == !o.valid_output.empty(), ConfigError,
                     "a validation split needs both a fraction and an output prefix of its own");
  DELTAPORT_VALIDATE(
      o.valid_output.empty() || canonical_prefix(o.output) != canonical_prefix(o.valid_output), ConfigError,
      "both outputs have the prefix ", o.output,
      o.output == o.valid_output ? std::string() : concat(" (also written as ", o.valid_output, ")"));
}

int thread_count(int asked) {
  constexpr int most = 16;  // bounds memory; one writer cannot keep up with more anyway
  const int available = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::min(asked > 0 ? asked : available, most);
}

void read_plain(const TextUnit& unit, DocumentEncoder& encoder) {
  const auto source = open_text(unit.file.path);
  std::vector<char> block(text_block_bytes);
  std::string_view text(block.data(), source->read(block));
  encoder.counts().source_bytes += static_cast<std::int64_t>(text.size());
  if (text.empty()) {
    ++encoder.counts().empty_documents;
    return;
  }
  if (unit.file.origin == Origin::found && text.find('\0') != text.npos) {
    ++encoder.counts().binary_files;
    return;
  }
  ++encoder.counts().files;
  encoder.begin(text);
  while (!text.empty()) {
    encoder.add(text);
    text = std::string_view(block.data(), source->read(block));
    encoder.counts().source_bytes += static_cast<std::int64_t>(text.size());
  }
  encoder.end();
}

void read_jsonl(const TextUnit& unit, const std::string& field, DocumentEncoder& encoder,
                UnitQueue::Output& output) {
  JsonlReader reader(unit, field, [&output] { output.wait_for_turn(); });
  std::int64_t counted = 0;
  std::string_view text;
  for (bool more = true; more;) {
    more = reader.next(text);
    if (more) encoder.encode(text);
    encoder.counts().source_bytes += reader.bytes() - counted;
    counted = reader.bytes();
  }
  if (unit.begin == 0) ++encoder.counts().files;
}

void add_counts(PrepareSummary& sum, const PrepareSummary& part) {
  sum.files += part.files;
  sum.text_bytes += part.text_bytes;
  sum.source_bytes += part.source_bytes;
  sum.cut_bytes += part.cut_bytes;
  sum.binary_files += part.binary_files;
  sum.empty_documents += part.empty_documents;
  sum.not_utf8 += part.not_utf8;
}

/// The writing end: takes chunks in order and sends documents to their side.
class Writers {
 public:
  Writers(const PrepareOptions& o, TokenDtype dtype) : dtype_(dtype), train_(o.output, dtype, o.existing) {
    if (!o.valid_output.empty()) valid_.emplace(o.valid_output, dtype, o.existing);
  }

  void write(const Chunk& chunk, PrepareSummary& summary) {
    std::span<const std::byte> stored(chunk.stored);
    for (const Piece& piece : chunk.pieces) {
      TokenWriter& writer = piece.side == Side::valid ? *valid_ : train_;
      const auto bytes = static_cast<std::size_t>(piece.tokens * size_of(dtype_));
      writer.append_stored(stored.first(bytes), piece.max_id);
      stored = stored.subspan(bytes);
      if (piece.ends_document) writer.end_document();
    }
    add_counts(summary, chunk.counts);
    summary.valid_documents = valid_ ? valid_->documents() : 0;
    summary.valid_tokens = valid_ ? valid_->tokens() : 0;
    summary.documents = train_.documents() + summary.valid_documents;
    summary.tokens = train_.tokens() + summary.valid_tokens;
  }

  /// All files reach the disk before the first one gets its name.
  void publish(const Tokenizer& tokenizer) {
    train_.seal(&tokenizer);
    if (valid_) valid_->seal(&tokenizer);
    if (valid_) valid_->publish(&tokenizer);
    train_.publish(&tokenizer);
  }

 private:
  TokenDtype dtype_;
  TokenWriter train_;
  std::optional<TokenWriter> valid_;
};

void check_result(const PrepareOptions& options, const PrepareSummary& s) {
  DELTAPORT_VALIDATE(s.documents > 0, DataError, options.inputs.front(),
                     options.inputs.size() > 1 ? ", ...: " : ": ", "no documents found (", s.other_files,
                     " files with other extensions, ", s.binary_files, " binary, ", s.special_files,
                     " special, ", s.empty_documents, " empty)");
  if (options.valid_output.empty()) return;
  DELTAPORT_VALIDATE(
      s.valid_documents > 0 && s.valid_documents < s.documents, DataError, options.inputs.front(), ": of ",
      s.documents, " documents ", s.valid_documents,
      " fell into the validation set; give more documents, another fraction, or prepare a validation "
      "text of its own");
}

}  // namespace

PrepareSummary prepare(const PrepareOptions& options) {
  check_options(options);
  const auto start = Clock::now();
  const auto seconds_since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  const auto owner = make_tokenizer(options.tokenizer);
  const Tokenizer& tokenizer = *owner;
  const TokenDtype dtype = dtype_for_vocab(tokenizer.vocab_size());
  TextUnits units(CorpusWalker(options.inputs, options.extensions));
  Writers writers(options, dtype);
  PrepareSummary summary;
  {
    UnitQueue queue(units, thread_count(options.threads),
                    [&](const TextUnit& unit, UnitQueue::Output& output) {
                      DocumentEncoder encoder(options, tokenizer, dtype, output);
                      if (unit.format == TextFormat::plain)
                        read_plain(unit, encoder);
                      else
                        read_jsonl(unit, options.text_field, encoder, output);
                      encoder.finish();
                    });
    auto shown = start;
    for (Chunk chunk; queue.next(chunk);) {
      writers.write(chunk, summary);
      if (!options.progress || seconds_since(shown) < 0.25) continue;
      shown = Clock::now();
      summary.seconds = seconds_since(start);
      options.progress(summary);
    }
  }
  summary.other_files = units.walker().other_files();
  summary.special_files = units.walker().special_files();
  check_result(options, summary);
  writers.publish(tokenizer);
  summary.seconds = seconds_since(start);
  return summary;
}

}  // namespace deltaport
