// SPDX-License-Identifier: Apache-2.0
// deltaport data prepare | inspect
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "command.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/data/inspect.hpp"
#include "deltaport/data/prepare.hpp"

namespace deltaport::app {
namespace {

double mega(std::int64_t n) {
  return static_cast<double>(n) / 1e6;
}

double speed(const PrepareSummary& s) {
  return s.seconds > 0.0 ? mega(s.source_bytes) / s.seconds : 0.0;
}

void show_progress(const PrepareSummary& s) {
  std::fprintf(stderr, "\r%lld documents, %.1f M tokens, %.1f MB read, %.0f MB/s   ",
               static_cast<long long>(s.documents), mega(s.tokens), mega(s.source_bytes), speed(s));
  std::fflush(stderr);
}

void show_count(std::int64_t count, const char* what) {
  if (count > 0) std::printf("  %-20lld %s\n", static_cast<long long>(count), what);
}

void show_summary(const PrepareOptions& o, const PrepareSummary& s) {
  std::printf("%s: %lld documents, %lld tokens", o.output.c_str(),
              static_cast<long long>(s.documents - s.valid_documents),
              static_cast<long long>(s.tokens - s.valid_tokens));
  if (!o.valid_output.empty())
    std::printf("\n%s: %lld documents, %lld tokens", o.valid_output.c_str(),
                static_cast<long long>(s.valid_documents), static_cast<long long>(s.valid_tokens));
  std::printf("\n%lld files, %.1f MB of text in %.1f s (%.0f MB/s)\n", static_cast<long long>(s.files),
              mega(s.text_bytes), s.seconds, speed(s));
  show_count(s.other_files, "files skipped: other extension");
  show_count(s.binary_files, "files skipped: binary");
  show_count(s.special_files, "entries skipped: links to folders, broken links, no regular files");
  show_count(s.empty_documents, "documents skipped: empty");
  show_count(s.cut_bytes, "bytes skipped: beyond --max-document-bytes");
  show_count(s.not_utf8, "documents kept that are not UTF-8");
}

int run_prepare(PrepareOptions options) {
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  if (terminal) options.progress = show_progress;
  const PrepareSummary summary = prepare(options);
  if (terminal) std::fprintf(stderr, "\r%78s\r", "");
  show_summary(options, summary);
  return 0;
}

void add_prepare(CLI::App& data, Action& action) {
  auto* command =
      data.add_subcommand("prepare", "Turn text files, folders, JSONL (also gzip'd) into a token file");
  auto options = std::make_shared<PrepareOptions>();
  auto extensions = std::make_shared<std::vector<std::string>>();
  auto force = std::make_shared<bool>(false);
  command->add_option("input", options->inputs, "Text files, .jsonl files, folders (in this order)")
      ->required();
  command->add_option("--output,-o", options->output, "Prefix of the .bin, .idx and .meta.json to write")
      ->required();
  command->add_option("--threads", options->threads, "Reading threads, at most 16 (default: one per core)")
      ->check(at_least(1));
  auto* fraction = command->add_option("--valid-fraction", options->valid_fraction,
                                       "Fraction of the documents, chosen by content, for a validation set");
  auto* valid = command->add_option("--valid-output", options->valid_output, "Prefix of the validation set");
  fraction->needs(valid);
  valid->needs(fraction);
  auto special = std::make_shared<bool>(false);
  command
      ->add_option("--tokenizer", options->tokenizer.path,
                   "byte, or a tokenizer.json (or its folder) of a byte-level BPE, e.g. of Qwen3.5")
      ->capture_default_str();
  command->add_flag("--special-tokens", *special,
                    "Take text like <|im_start|> for the special token of that name (default: for text)");
  command->add_option("--end-of-document", options->tokenizer.end_of_document,
                      "Added token that follows each document (default: <|endoftext|>)");
  command->add_option("--text-field", options->text_field, "Field of a JSONL object that holds the text")
      ->capture_default_str();
  command
      ->add_option(
          "--extension", *extensions,
          "Endings of names (less .gz) to take from folders; * takes all (default: .txt .md .rst .jsonl)")
      ->allow_extra_args(false);
  command->add_option("--max-document-bytes", options->max_document_bytes, "Cut longer documents there")
      ->check(at_least(std::int64_t{1}));
  command->add_flag("--force", *force, "Replace an output that exists");
  command->footer(
      "A text file is one document, a line of a JSONL file (32 MiB at most) is one. The byte tokenizer "
      "keeps bytes as they are. With a\n"
      "tokenizer.json, more than 1 MiB in which no line begins with an ASCII letter or digit is cut there: "
      "no token "
      "joins the parts.\n"
      "In folders, binary files (a NUL byte in the first 512 KiB), links to folders and special files are "
      "skipped.");
  command->callback([=, &action] {
    if (!extensions->empty()) options->extensions = *extensions;
    const TokenizerFile& tokenizer = options->tokenizer;
    DELTAPORT_VALIDATE(
        (!tokenizer.path.empty() && tokenizer.path != "byte") ||
            (!*special && tokenizer.end_of_document.empty()),
        ConfigError,
        "--special-tokens and --end-of-document need --tokenizer FILE: the byte tokenizer has neither");
    options->tokenizer.special_tokens = *special ? SpecialTokens::recognised : SpecialTokens::as_text;
    options->existing = *force ? Existing::replace : Existing::refuse;
    action = [options] { return run_prepare(*options); };
  });
}

void add_inspect(CLI::App& data, Action& action) {
  auto* command =
      data.add_subcommand("inspect", "Show header, document lengths and first documents of a token file");
  auto options = std::make_shared<InspectOptions>();
  auto verify = std::make_shared<bool>(false);
  auto json = std::make_shared<bool>(false);
  command->add_option("prefix", options->prefix, "PREFIX of PREFIX.bin and PREFIX.idx")->required();
  command->add_option("--documents", options->documents, "How many documents to decode")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json or its folder, to decode with");
  command->add_flag("--verify", *verify, "Read all tokens and compare the checksum with the side-car");
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([=, &action] {
    options->verify = *verify ? Verify::yes : Verify::no;
    action = [options, json] {
      std::fputs((*json ? inspect_as_json(*options) : inspect_as_text(*options)).c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace

void add_data(CLI::App& parent, const Invocation&, Action& action) {
  auto* data = parent.add_subcommand("data", "Prepare and inspect token files");
  data->require_subcommand(1);
  add_prepare(*data, action);
  add_inspect(*data, action);
}

}  // namespace deltaport::app
