// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "data/corpus_walker.hpp"

namespace deltaport {

enum class TextFormat { plain, jsonl };

/// What one thread turns into tokens: a file, or the lines of a large JSONL file that begin in [begin, end).
struct TextUnit {
  CorpusFile file;
  TextFormat format = TextFormat::plain;
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// The units of a corpus in output order.
class TextUnits {
 public:
  explicit TextUnits(CorpusWalker walker) : walker_(std::move(walker)) {}
  /// False when there are no more. Throws DataError.
  bool next(TextUnit& unit);
  const CorpusWalker& walker() const { return walker_; }

 private:
  CorpusWalker walker_;
  TextUnit large_;  // JSONL file being divided
  bool dividing_ = false;
};

}  // namespace deltaport
