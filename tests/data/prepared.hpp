// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "data/scratch.hpp"
#include "deltaport/data/prepare.hpp"
#include "deltaport/data/token_file.hpp"

namespace deltaport::test {

/// Options for one input, writing to `out` in the scratch folder.
inline PrepareOptions options_for(const Scratch& scratch, std::vector<std::string> inputs, int threads = 2) {
  PrepareOptions options;
  options.inputs = std::move(inputs);
  options.output = scratch.path("out/data");
  options.threads = threads;
  options.existing = Existing::replace;
  return options;
}

/// The documents as text; checks that each ends with its end-of-document, which is left out.
inline std::vector<std::string> documents_of(const std::string& prefix) {
  const TokenFile file(prefix);
  std::vector<std::string> documents;
  for (std::int64_t d = 0; d < file.documents(); ++d) {
    const std::int64_t begin = file.document_begin(d);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file.document_begin(d + 1) - begin));
    file.read(begin, ids);
    if (ids.empty() || ids.back() != ByteTokenizer().end_of_document())
      throw std::runtime_error("no end of document");
    ids.pop_back();
    documents.push_back(ByteTokenizer().decode_bytes(ids));
  }
  return documents;
}

/// prepare(), then the documents.
inline std::vector<std::string> prepared(const PrepareOptions& options) {
  prepare(options);
  return documents_of(options.output);
}

}  // namespace deltaport::test
