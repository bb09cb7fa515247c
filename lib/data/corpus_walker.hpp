// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltaport {

/// How a file came into the corpus: named by the user, or found in a folder the user named.
enum class Origin { named, found };

struct CorpusFile {
  std::string path;
  Origin origin = Origin::named;
  std::int64_t bytes = 0;
};

/// Yields the files of a corpus one by one: inputs in the order given, each folder in the order of its paths'
/// bytes. Holds the names of the folders on the current path only. Links to files are followed, links to
/// folders (which may form loops) are not, unless the user named them. Throws DataError for what cannot be
/// read.
class CorpusWalker {
 public:
  /// Checks at once that every input is a regular file or a folder.
  CorpusWalker(std::vector<std::string> inputs, std::vector<std::string> extensions);

  /// False when there are no more.
  bool next(CorpusFile& file);

  std::int64_t other_files() const { return other_files_; }
  std::int64_t special_files() const { return special_files_; }

 private:
  /// A folder being walked; its entries lie in `names` as kind, name, NUL.
  struct Folder {
    std::string path;  // ends in '/'
    std::string names;
    std::vector<std::uint32_t> order;  // where entries begin, sorted
    std::size_t at = 0;
  };

  bool next_input(CorpusFile& file);
  bool next_entry(CorpusFile& file);
  bool wanted(std::string_view name) const;
  void enter(std::string path);

  std::vector<std::string> inputs_;
  std::vector<std::string> extensions_;
  std::size_t next_input_ = 0;
  std::vector<Folder> folders_;
  std::int64_t other_files_ = 0;
  std::int64_t special_files_ = 0;
};

/// `name` without a trailing ".gz", in lower case.
std::string text_name_of(std::string_view name);

}  // namespace deltaport
