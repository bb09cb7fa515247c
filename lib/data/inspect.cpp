// SPDX-License-Identifier: Apache-2.0
#include "deltaport/data/inspect.hpp"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/checksum.hpp"
#include "data/length_histogram.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/data/metadata.hpp"
#include "deltaport/data/token_file.hpp"
#include "deltaport/data/tokenizer.hpp"
#include "deltaport/data/utf8.hpp"

namespace deltaport {
namespace {

constexpr std::int64_t shown_tokens = 200;  // of each decoded document

/// Whether data was prepared with this file, with any of the options that its hash covers.
bool made_by(const TokenFileMetadata& metadata, const Tokenizer& tokenizer, const std::string& path) {
  if (metadata.tokenizer_hash == tokenizer.hash()) return true;
  if (metadata.tokenizer != tokenizer.name()) return false;
  TokenizerFile file{.path = path};
  const auto end = static_cast<std::int32_t>(metadata.end_of_document);
  if (end != tokenizer.end_of_document())
    file.end_of_document = tokenizer.decode(std::vector<std::int32_t>{end});
  for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::recognised}) {
    file.special_tokens = special;
    try {
      if (make_tokenizer(file)->hash() == metadata.tokenizer_hash) return true;
    } catch (const DataError&) {  // it has no such end of document
      return false;
    }
  }
  return false;
}

/// Everything that both forms of output show.
struct Inspection {
  explicit Inspection(const InspectOptions& o)
      : options(o), file(o.prefix), metadata(read_metadata(o.prefix)), histogram(length_histogram(file)) {
    DELTAPORT_VALIDATE(o.documents >= 0, ConfigError, "documents is ", o.documents, "; expected 0 or more");
    if (metadata && metadata->tokenizer == ByteTokenizer().name())
      tokenizer = make_tokenizer(metadata->tokenizer);
    if (!o.tokenizer.empty()) tokenizer = make_tokenizer(TokenizerFile{.path = o.tokenizer});
    DELTAPORT_VALIDATE(!metadata || !tokenizer || metadata->vocab_size == tokenizer->vocab_size(), DataError,
                       o.tokenizer, ": has ", tokenizer ? tokenizer->vocab_size() : 0, " ids, but ", o.prefix,
                       " was prepared with ", metadata ? metadata->vocab_size : 0);
    check_metadata();
    if (metadata && !o.tokenizer.empty())
      prepared_with_tokenizer = made_by(*metadata, *tokenizer, o.tokenizer);
  }

  void check_metadata() const;

  /// The front of a document: text where the tokenizer is known, else ids.
  std::string front_of(std::int64_t document) const {
    const std::int64_t begin = file.document_begin(document);
    const std::int64_t length = file.document_begin(document + 1) - begin;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(length, shown_tokens)));
    file.read(begin, ids);
    std::string text;
    if (tokenizer) {
      text = tokenizer->decode(ids);
    } else {
      for (const std::int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
    }
    return length > shown_tokens ? text + "..." : text;
  }

  std::int64_t shown_documents() const { return std::min(options.documents, file.documents()); }

  InspectOptions options;
  TokenFile file;
  std::optional<TokenFileMetadata> metadata;
  LengthHistogram histogram;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<bool> prepared_with_tokenizer;  // whether the side-car names the file of --tokenizer
};

void Inspection::check_metadata() const {
  DELTAPORT_VALIDATE(metadata || options.verify == Verify::no, DataError, options.prefix,
                     ".meta.json: no such file, so there is no checksum to verify");
  if (!metadata) return;
  const std::string path = options.prefix + ".meta.json";
  DELTAPORT_VALIDATE(metadata->tokens == file.tokens() && metadata->documents == file.documents(), DataError,
                     path, ": belongs to other files: it says ", metadata->documents, " documents and ",
                     metadata->tokens, " tokens, found ", file.documents(), " and ", file.tokens());
  if (options.verify == Verify::no) return;
  Checksum checksum;
  checksum.add(file.bin_bytes());
  DELTAPORT_VALIDATE(checksum.hex() == metadata->xxh3, DataError, file.bin_path(), ": XXH3-128 is ",
                     checksum.hex(), "; ", path, " says ", metadata->xxh3);
}

void print_header(const Inspection& i, std::ostream& out) {
  out << i.options.prefix << "\n"
      << "  dtype       " << name_of(i.file.dtype()) << "\n"
      << "  documents   " << i.file.documents() << "\n"
      << "  sequences   " << i.file.sequences() << "\n"
      << "  tokens      " << i.file.tokens() << "\n"
      << "  .bin bytes  " << i.file.bin_bytes().size() << "\n"
      << "  .idx bytes  " << i.file.idx_bytes().size() << "\n";
  if (i.metadata)
    out << "  tokenizer   " << i.metadata->tokenizer << ", vocabulary " << i.metadata->vocab_size
        << ", end of document " << i.metadata->end_of_document << "\n"
        << "  largest id  " << i.metadata->max_id << "\n"
        << "  XXH3-128    " << i.metadata->xxh3 << (i.options.verify == Verify::yes ? " (verified)" : "")
        << "\n";
  else
    out << "  no side-car (.meta.json): tokenizer unknown\n";
  if (i.prepared_with_tokenizer == false)
    out << "  warning     prepared with another tokenizer than " << i.options.tokenizer
        << " (the side-car has its hash): text below may be wrong\n";
}

void print_histogram(const LengthHistogram& h, std::ostream& out) {
  constexpr std::int64_t bar_width = 40;
  std::int64_t most = 1;
  for (const auto& bin : h.bins) most = std::max(most, bin.documents);
  out << "\nTokens per document: " << h.shortest << " to " << h.longest << ", mean " << std::fixed
      << std::setprecision(1) << h.mean << "\n";
  for (const auto& bin : h.bins) {
    const auto width = static_cast<std::size_t>((bin.documents * bar_width + most - 1) / most);
    out << std::setw(11) << bin.first << " to " << std::setw(11) << std::left << bin.last << std::right << " "
        << std::setw(10) << bin.documents << " " << std::string(width, '#') << "\n";
  }
}

}  // namespace

std::string inspect_as_text(const InspectOptions& options) {
  const Inspection i(options);
  std::ostringstream out;
  print_header(i, out);
  if (i.file.documents() > 0) print_histogram(i.histogram, out);
  for (std::int64_t d = 0; d < i.shown_documents(); ++d)
    out << "\nDocument " << d << " (" << i.file.document_begin(d + 1) - i.file.document_begin(d)
        << " tokens):\n  " << escape_for_terminal(i.front_of(d)) << "\n";
  return out.str();
}

std::string inspect_as_json(const InspectOptions& options) {
  const Inspection i(options);
  nlohmann::ordered_json json;
  json["prefix"] = replace_ill_formed(options.prefix);
  json["dtype"] = name_of(i.file.dtype());
  json["documents"] = i.file.documents();
  json["sequences"] = i.file.sequences();
  json["tokens"] = i.file.tokens();
  json["bin_bytes"] = i.file.bin_bytes().size();
  json["idx_bytes"] = i.file.idx_bytes().size();
  json["meta"] = i.metadata ? nlohmann::ordered_json::parse(to_json(*i.metadata)) : nlohmann::ordered_json();
  json["prepared_with_tokenizer"] = i.prepared_with_tokenizer
                                        ? nlohmann::ordered_json(*i.prepared_with_tokenizer)
                                        : nlohmann::ordered_json();
  json["verified"] = options.verify == Verify::yes;
  json["lengths"] = {
      {"shortest", i.histogram.shortest}, {"longest", i.histogram.longest}, {"mean", i.histogram.mean}};
  json["histogram"] = nlohmann::ordered_json::array();
  for (const auto& bin : i.histogram.bins)
    json["histogram"].push_back({{"first", bin.first}, {"last", bin.last}, {"documents", bin.documents}});
  json["first_documents"] = nlohmann::ordered_json::array();
  for (std::int64_t d = 0; d < i.shown_documents(); ++d) json["first_documents"].push_back(i.front_of(d));
  return json.dump(2) + "\n";
}

}  // namespace deltaport
