// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "deltaport/data/token_writer.hpp"
#include "deltaport/data/tokenizer.hpp"

namespace deltaport {

struct PrepareSummary {
  std::int64_t files = 0;  ///< read
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t valid_documents = 0;  ///< of documents
  std::int64_t valid_tokens = 0;     ///< of tokens
  std::int64_t text_bytes = 0;       ///< bytes of the documents kept
  std::int64_t source_bytes = 0;     ///< decompressed bytes read, JSON syntax and skipped files included
  std::int64_t cut_bytes = 0;        ///< beyond max_document_bytes
  std::int64_t binary_files = 0;     ///< found in folders, skipped
  std::int64_t other_files = 0;      ///< found in folders, name not asked for
  std::int64_t special_files = 0;    ///< links to folders, broken links, FIFOs, sockets, devices; skipped
  std::int64_t empty_documents = 0;  ///< skipped
  std::int64_t not_utf8 = 0;         ///< documents that are not UTF-8; kept
  double seconds = 0.0;
};

struct PrepareOptions {
  /// Files and folders, read in this order. Folders are walked in the order of their paths' bytes.
  std::vector<std::string> inputs;
  std::string output;           ///< prefix
  std::string valid_output;     ///< prefix; empty: no split
  double valid_fraction = 0.0;  ///< of the documents, in (0, 1) with valid_output
  TokenizerFile tokenizer{.path = "byte"};
  std::string text_field = "text";  ///< of JSONL objects
  /// Files in folders are taken when their name, less ".gz", ends in one of these; "*" takes all.
  std::vector<std::string> extensions = {".txt", ".md", ".rst", ".jsonl"};
  std::int64_t max_document_bytes = 0;  ///< longer documents are cut there; 0: no limit
  int threads = 0;                      ///< 0: one per core; at most 16 are used
  Existing existing = Existing::refuse;
  std::function<void(const PrepareSummary&)> progress;  ///< called about four times a second
};

/// Longest line of a JSONL file.
inline constexpr std::int64_t max_jsonl_line_bytes = std::int64_t{32} << 20;

/// Turns text into a token file (see TokenWriter). A text file is one document; a line of a JSONL file
/// (.jsonl, .ndjson, .json) is one. Either may be compressed with gzip, which is recognised by content. Each
/// document is followed by the tokenizer's end-of-document. The output is the same for any number of threads
/// and either complete or absent; memory stays below 512 MiB whatever the input holds, because files are
/// streamed in blocks. (With a tokenizer.json, a stretch of more than 1 MiB in which no line begins with an
/// ASCII letter or digit is cut there; no token joins the two parts.)
///
/// Skipped in folders and counted: files with a NUL byte among the first 512 KiB, special files, links to
/// folders. A file named as an input is always read, its bytes kept as they are. Text that is not UTF-8 is
/// kept and counted.
///
/// With a validation split a document goes to the validation set by a hash of its first 512 KiB, so equal
/// documents are always on the same side and adding files moves no document.
///
/// Throws DataError naming file and byte offset or line: unreadable or invalid input, no documents (on either
/// side of the split), a full disk. Throws ConfigError: bad options, an output that exists.
PrepareSummary prepare(const PrepareOptions& options);

}  // namespace deltaport
