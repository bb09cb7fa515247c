// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/byte_source.hpp"
#include "data/growing_buffer.hpp"
#include "data/text_unit.hpp"

namespace deltaport {

/// The documents of one JSONL unit: the string field `field` of the object in each line. Blank lines are
/// skipped. Throws DataError naming file and line: not JSON, no object, field missing, repeated or no string,
/// line too long.
class JsonlReader {
 public:
  /// `before_growth` is called before the buffer grows beyond 1 MiB.
  JsonlReader(const TextUnit& unit, std::string field, std::function<void()> before_growth);

  /// Moves to the next document; false at the end. `text` stays valid until the next call.
  bool next(std::string_view& text);
  /// Decompressed bytes of the unit's lines so far.
  std::int64_t bytes() const { return taken_; }

 private:
  /// The next line without its newline, inside the buffer; false at the end of the unit.
  bool next_line(std::span<char>& line);
  /// Reads more; false at the end of the file.
  bool fill();
  [[noreturn]] void fail(const std::string& what) const;

  const TextUnit& unit_;
  const std::string field_;
  std::function<void()> before_growth_;
  std::unique_ptr<ByteSource> source_;
  GrowingBuffer buffer_;
  std::size_t begin_ = 0;  // unread part of buffer_: [begin_, end_)
  std::size_t end_ = 0;
  std::int64_t position_ = 0;    // of begin_ in the file
  std::int64_t first_line_ = 0;  // where the unit's first line begins
  std::int64_t taken_ = 0;
  std::int64_t line_ = 0;  // of the unit, from 1
};

}  // namespace deltaport
