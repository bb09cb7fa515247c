// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe_file.hpp"

namespace deltaport {

/// True where normalisation changes neither `text` nor what may stand before or behind it; false when that
/// takes a closer look. `text` is well-formed UTF-8. Holds for NFC and NFD as far as ASCII, for NFC beyond.
bool is_surely_normalized(std::string_view text, Normalization form);
/// Appends the normal form of well-formed UTF-8.
void append_normalized(std::string_view text, Normalization form, std::string& out);

/// The pattern in the words of PCRE2, which counts U+180E among white space: \s as the explicit class that
/// tokenizers mean. Throws DataError naming an escape that the two read differently.
std::string with_explicit_space(const std::string& pattern);

/// Cuts text by patterns: matches are pieces, and so is what lies between them. Immutable; needs a Workspace
/// per thread.
class TextSplitter {
 public:
  class Workspace;
  /// Throws DataError for a pattern that PCRE2 cannot compile; `path` is for messages.
  TextSplitter(const std::vector<std::string>& patterns, const std::string& path);
  ~TextSplitter();

  std::unique_ptr<Workspace> make_workspace() const;
  /// Calls take(piece) for the pieces of `text` (well-formed UTF-8) in order, until it returns false.
  template <class Take>
  void split(Workspace& workspace, std::string_view text, const Take& take) const {
    split_level(workspace, 0, text, take);
  }

 private:
  struct Match {
    std::size_t begin, end;
  };
  /// The first match at or behind `from`; false when there is none.
  bool next_match(Workspace& workspace, std::size_t level, std::string_view text, std::size_t from,
                  Match& match) const;

  template <class Take>
  bool split_level(Workspace& workspace, std::size_t level, std::string_view text, const Take& take) const {
    if (text.empty()) return true;
    if (level == count_) return take(text);
    std::size_t done = 0;
    for (Match match{0, 0}; done < text.size() && next_match(workspace, level, text, done, match);
         done = match.end) {
      if (!split_level(workspace, level + 1, text.substr(done, match.begin - done), take)) return false;
      if (!split_level(workspace, level + 1, text.substr(match.begin, match.end - match.begin), take))
        return false;
    }
    return split_level(workspace, level + 1, text.substr(done), take);
  }

  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::size_t count_ = 0;
};

/// What matching needs of its own in each thread.
class TextSplitter::Workspace {
 public:
  virtual ~Workspace() = default;
};

}  // namespace deltaport
