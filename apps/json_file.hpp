// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace deltaport::app {

/// A file that a command writes at its end, and of which it knows from its start that it can be written.
class JsonFile {
 public:
  /// Throws Error, naming the file and why, when it cannot be opened for writing. What it holds stays until write().
  /// An empty path stands for no file.
  explicit JsonFile(std::string path);
  /// A file that was not there before and was never written is removed.
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  /// Whether there is a file to write.
  bool wanted() const { return !path_.empty(); }
  /// The file's new contents, with a line feed at the end. Throws Error, naming the file and why, also when a disk turns
  /// out to be full at the last byte.
  void write(const std::string& text);

 private:
  std::string path_;
  bool is_new_ = false;
};

}  // namespace deltaport::app
