// SPDX-License-Identifier: Apache-2.0
#include "config/diagnostics.hpp"

#include <algorithm>
#include <tuple>

#include "deltaport/core/error.hpp"

namespace deltaport::config {
namespace {

constexpr std::size_t max_kept_errors = 1000;  // a hostile file must not fill the memory
constexpr std::size_t max_shown_columns = 160;

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Blanks as wide as the text: tabs stay tabs, a multi-byte character counts once.
std::string padding(const std::string& text) {
  std::string pad;
  for (const char c : text)
    if (!continues_character(c)) pad += c == '\t' ? '\t' : ' ';
  return pad;
}

}  // namespace

std::string describe(const Location& where) {
  if (where.line <= 0) return where.source;
  if (where.column <= 0) return concat(where.source, ":", where.line);
  return concat(where.source, ":", where.line, ":", where.column);
}

void Diagnostics::add_source(const std::string& name, const std::string& text) {
  if (lines_.count(name) == 0) order_.push_back(name);
  lines_[name] = split_lines(text);
}

int Diagnostics::order_of(const std::string& name) const {
  return static_cast<int>(std::find(order_.begin(), order_.end(), name) - order_.begin());
}

bool Diagnostics::full() const {
  return errors_.size() >= max_kept_errors;
}

void Diagnostics::error(const Location& where, const std::string& message, const std::string& hint) {
  if (!full() && seen_.insert(describe(where) + " " + message).second)
    errors_.push_back({where, message, hint});
}

void Diagnostics::warn(const Location& where, const std::string& message) {
  warnings_.push_back(describe(where) + ": warning: " + message);
}

// The source line, and below it the caret, the underline and the hint.
std::string Diagnostics::quote(const Entry& entry) const {
  const Location& at = entry.where;
  const auto found = lines_.find(at.source);
  const auto line_index = static_cast<std::size_t>(at.line - 1);
  if (at.line <= 0 || found == lines_.end() || line_index >= found->second.size())
    return entry.hint.empty() ? "" : "  " + entry.hint + "\n";
  const std::string& line = found->second[line_index];
  const std::size_t column =
      std::min<std::size_t>(static_cast<std::size_t>(std::max(at.column, 1) - 1), line.size());
  const std::size_t length =
      std::min<std::size_t>(static_cast<std::size_t>(std::max(at.length, 1)), line.size() - column);
  // A very long line is shown from near the place.
  const std::size_t first = column > max_shown_columns ? column - max_shown_columns / 2 : 0;
  const std::string shown = line.substr(first, max_shown_columns);
  const std::string underlined = padding(line.substr(column, std::min(length, max_shown_columns)));
  const std::string number = std::to_string(at.line);
  const std::string margin(std::max<std::size_t>(4, number.size() + 2), ' ');
  std::string text = margin.substr(number.size()) + number + " | " + shown + "\n" + margin + " | " +
                     padding(line.substr(first, column - first)) + "^";
  if (underlined.size() > 1) text += std::string(underlined.size() - 1, '~');
  if (!entry.hint.empty()) text += " " + entry.hint;
  return text + "\n";
}

std::string Diagnostics::report(std::size_t cap) const {
  std::vector<const Entry*> sorted;
  for (const Entry& e : errors_) sorted.push_back(&e);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->where.source_order, a->where.source, a->where.line, a->where.column) <
           std::tie(b->where.source_order, b->where.source, b->where.line, b->where.column);
  });
  const std::size_t count = sorted.size();
  std::string text = "the configuration has " + std::string(count >= max_kept_errors ? "at least " : "") +
                     std::to_string(count) + (count == 1 ? " error\n" : " errors\n");
  for (std::size_t i = 0; i < std::min(cap, count); ++i)
    text += describe(sorted[i]->where) + ": error: " + sorted[i]->message + "\n" + quote(*sorted[i]);
  if (count > cap) text += "... and " + std::to_string(count - cap) + " more\n";
  if (text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace deltaport::config
