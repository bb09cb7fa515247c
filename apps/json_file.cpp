// SPDX-License-Identifier: Apache-2.0
#include "json_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "deltaport/core/error.hpp"

namespace deltaport::app {
namespace {

[[noreturn]] void cannot_write(const std::string& path, int why) {
  throw Error(concat("cannot write ", path, ": ", std::strerror(why)));
}

}  // namespace

JsonFile::JsonFile(std::string path) : path_(std::move(path)) {
  if (!wanted()) return;
  std::error_code ignored;
  is_new_ = !std::filesystem::exists(path_, ignored);
  std::FILE* file = std::fopen(path_.c_str(), "a");  // keeps what it holds
  if (file == nullptr) cannot_write(path_, errno);
  std::fclose(file);
}

JsonFile::~JsonFile() {
  if (is_new_) std::remove(path_.c_str());
}

void JsonFile::write(const std::string& text) {
  std::FILE* file = std::fopen(path_.c_str(), "w");
  if (file == nullptr) cannot_write(path_, errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                       std::fputc('\n', file) != EOF && std::fflush(file) == 0;
  const int why = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) cannot_write(path_, written ? errno : why);
  is_new_ = false;
}

}  // namespace deltaport::app
