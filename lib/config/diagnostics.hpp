// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace deltaport::config {

/// A place in the user's input. Files count from 1; line 0 means that the source has no lines (an argument, a
/// variable).
struct Location {
  std::string source;  ///< file name, "<command line>:--train.steps", "<environment>:DELTAPORT_TRAIN__STEPS"
  int source_order = 0;
  int line = 0;
  int column = 0;
  int length = 1;  ///< bytes to underline
};

/// Collects every problem, so that one run shows them all.
class Diagnostics {
 public:
  /// Remembers a text for quoting its lines. Sources are reported in the order of this call.
  void add_source(const std::string& name, const std::string& text);
  /// Order of a source that was added, or a place after all files.
  int order_of(const std::string& name) const;

  void error(const Location& where, const std::string& message, const std::string& hint = {});
  void warn(const Location& where, const std::string& message);

  bool failed() const { return !errors_.empty(); }
  std::size_t count() const { return errors_.size(); }
  /// So many errors that more are not kept.
  bool full() const;
  /// "the configuration has 2 errors", then each with its source line; sorted by place, at most `cap` shown.
  std::string report(std::size_t cap = 20) const;
  std::vector<std::string> warnings() const { return warnings_; }

 private:
  struct Entry {
    Location where;
    std::string message;
    std::string hint;
  };
  std::string quote(const Entry& entry) const;

  std::vector<std::string> order_;
  std::map<std::string, std::vector<std::string>> lines_;
  std::vector<Entry> errors_;
  std::set<std::string> seen_;  // the same error may be met on several ways
  std::vector<std::string> warnings_;
};

/// "file:line:column", as far as known.
std::string describe(const Location& where);

}  // namespace deltaport::config
