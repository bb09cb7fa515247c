// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "deltaport/core/error.hpp"
#include "deltaport/data/token_writer.hpp"

namespace deltaport::test {

/// A folder of its own for each test, removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "deltaport-data-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  /// Writes a file, with the folders above it; returns its path.
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::filesystem::remove(path(name));  // truncating in place makes some file systems wait for the disk
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  std::string folder_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A token file with these documents.
inline std::string write_documents(const std::string& prefix,
                                   const std::vector<std::vector<std::int32_t>>& documents,
                                   TokenDtype dtype = TokenDtype::u16) {
  TokenWriter writer(prefix, dtype, Existing::replace);
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document();
  }
  writer.publish(nullptr);
  return prefix;
}

/// Documents of the given lengths; token i of the stream is i % 251, so that every window shows where it came
/// from.
inline std::vector<std::vector<std::int32_t>> numbered_documents(const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<std::int32_t>> documents;
  std::int32_t next = 0;
  for (const std::int64_t length : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) document.push_back(next++ % 251);
  }
  return documents;
}

/// The text of the E that `action` throws; empty when it throws none. Other exceptions pass.
template <class E = DataError, class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const E& e) {
    return e.what();
  }
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

}  // namespace deltaport::test
