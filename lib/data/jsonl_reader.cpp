// SPDX-License-Identifier: Apache-2.0
#include "data/jsonl_reader.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "data/gzip_source.hpp"
#include "data/json_text_field.hpp"
#include "deltaport/core/error.hpp"
#include "deltaport/data/prepare.hpp"

namespace deltaport {
namespace {

constexpr std::size_t first_buffer_bytes = std::size_t{1} << 20;

/// Lines of a plain file before `offset`; only for messages, so the file is simply read again.
std::int64_t lines_before(const std::string& path, std::int64_t offset) {
  if (offset == 0) return 0;
  RawFile file(path);
  std::vector<char> block(first_buffer_bytes);
  std::int64_t lines = 0;
  for (std::int64_t left = offset; left > 0;) {
    const auto wanted = static_cast<std::size_t>(std::min(left, static_cast<std::int64_t>(block.size())));
    const std::size_t got = file.read(std::span(block).first(wanted));
    if (got == 0) break;
    lines += std::count(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(got), '\n');
    left -= static_cast<std::int64_t>(got);
  }
  return lines;
}

bool is_blank(std::span<const char> line) {
  return std::string_view(line.data(), line.size()).find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

JsonlReader::JsonlReader(const TextUnit& unit, std::string field, std::function<void()> before_growth)
    : unit_(unit),
      field_(std::move(field)),
      before_growth_(std::move(before_growth)),
      // One byte early: whether a line begins at `begin` shows in the byte before.
      source_(open_text(unit.file.path, std::max<std::int64_t>(unit.begin - 1, 0))),
      buffer_(first_buffer_bytes),
      position_(std::max<std::int64_t>(unit.begin - 1, 0)) {
  if (unit.begin == 0) return;
  // The line that began in the range before belongs to it, whatever its length.
  while (true) {
    if (begin_ == end_ && !fill()) return;
    const char* from = buffer_.data() + begin_;
    const auto* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const std::size_t skipped =
        newline != nullptr ? static_cast<std::size_t>(newline - from) + 1 : end_ - begin_;
    begin_ += skipped;
    position_ += static_cast<std::int64_t>(skipped);
    first_line_ = position_;
    if (newline != nullptr) return;
  }
}

bool JsonlReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    before_growth_();
    // Room for the longest line and for the byte that shows that it is too long.
    buffer_.grow(
        std::min(2 * buffer_.size(), static_cast<std::size_t>(max_jsonl_line_bytes) + first_buffer_bytes));
  }
  const std::size_t got = source_->read(std::span(buffer_.data() + end_, buffer_.size() - end_));
  end_ += got;
  return got > 0;
}

bool JsonlReader::next_line(std::span<char>& line) {
  if (position_ >= unit_.end) return false;
  ++line_;
  std::size_t searched = 0;
  while (true) {
    const char* from = buffer_.data() + begin_;
    const auto* newline =
        static_cast<const char*>(std::memchr(from + searched, '\n', end_ - begin_ - searched));
    searched = newline != nullptr ? static_cast<std::size_t>(newline - from) : end_ - begin_;
    if (searched > static_cast<std::size_t>(max_jsonl_line_bytes))
      fail(concat("longer than ", max_jsonl_line_bytes >> 20, " MiB; split its text over several lines"));
    if (newline == nullptr && fill()) continue;
    line = std::span(buffer_.data() + begin_, searched);
    const std::size_t taken = searched + (newline != nullptr ? 1 : 0);
    begin_ += taken;
    position_ += static_cast<std::int64_t>(taken);
    taken_ += static_cast<std::int64_t>(taken);
    return taken > 0;
  }
}

bool JsonlReader::next(std::string_view& text) {
  std::span<char> line;
  while (next_line(line)) {
    if (is_blank(line)) continue;
    const std::string problem = json_text_field(line, field_, text);
    if (!problem.empty()) fail(problem);
    return true;
  }
  return false;
}

void JsonlReader::fail(const std::string& what) const {
  throw DataError(
      concat(unit_.file.path, ": line ", lines_before(unit_.file.path, first_line_) + line_, ": ", what));
}

}  // namespace deltaport
