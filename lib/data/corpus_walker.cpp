// SPDX-License-Identifier: Apache-2.0
#include "data/corpus_walker.hpp"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {

// Kinds of folder entries, before their name in Folder::names.
constexpr char kind_file = 'f';
constexpr char kind_folder = 'd';
constexpr char kind_link = 'l';
constexpr char kind_special = 's';

constexpr std::size_t max_names_bytes = std::size_t{192} << 20;  // keeps memory bounded in absurd folders

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

char kind_of(mode_t mode) {
  if (S_ISREG(mode)) return kind_file;
  if (S_ISDIR(mode)) return kind_folder;
  if (S_ISLNK(mode)) return kind_link;
  return kind_special;
}

char kind_of(const dirent& entry, const std::string& folder) {
  switch (entry.d_type) {
    case DT_REG:
      return kind_file;
    case DT_DIR:
      return kind_folder;
    case DT_LNK:
      return kind_link;
    case DT_UNKNOWN:
      break;
    default:
      return kind_special;
  }
  struct stat status {};
  const std::string path = folder + entry.d_name;
  DELTAPORT_VALIDATE(::lstat(path.c_str(), &status) == 0, DataError, path,
                     ": cannot stat: ", std::strerror(errno));
  return kind_of(status.st_mode);
}

/// Compares as the paths below would compare: a folder's name goes on with '/'.
bool path_order(const char* a, const char* b) {
  const char end_a = *a++ == kind_folder ? '/' : '\0';
  const char end_b = *b++ == kind_folder ? '/' : '\0';
  for (; *a != '\0' && *a == *b; ++a, ++b) continue;
  return static_cast<unsigned char>(*a != '\0' ? *a : end_a) <
         static_cast<unsigned char>(*b != '\0' ? *b : end_b);
}

}  // namespace

std::string text_name_of(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  if (lower.ends_with(".gz")) lower.resize(lower.size() - 3);
  return lower;
}

CorpusWalker::CorpusWalker(std::vector<std::string> inputs, std::vector<std::string> extensions)
    : inputs_(std::move(inputs)), extensions_(std::move(extensions)) {
  for (std::string& extension : extensions_) extension = text_name_of(extension);
  for (const std::string& input : inputs_) {
    struct stat status {};
    DELTAPORT_VALIDATE(::stat(input.c_str(), &status) == 0, DataError, input,
                       ": cannot read: ", std::strerror(errno));
    DELTAPORT_VALIDATE(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode), DataError, input,
                       ": neither a regular file nor a folder");
  }
}

bool CorpusWalker::wanted(std::string_view name) const {
  const std::string text_name = text_name_of(name);
  return std::any_of(extensions_.begin(), extensions_.end(), [&](const std::string& extension) {
    return extension == "*" || text_name.ends_with(extension);
  });
}

bool CorpusWalker::next(CorpusFile& file) {
  while (true) {
    if (!folders_.empty()) {
      if (next_entry(file)) return true;
    } else if (next_input_ == inputs_.size()) {
      return false;
    } else if (next_input(file)) {
      return true;
    }
  }
}

bool CorpusWalker::next_input(CorpusFile& file) {
  const std::string& path = inputs_[next_input_++];
  struct stat status {};
  DELTAPORT_VALIDATE(::stat(path.c_str(), &status) == 0, DataError, path,
                     ": cannot read: ", std::strerror(errno));
  if (S_ISDIR(status.st_mode)) {
    enter(path.ends_with('/') ? path : path + "/");
    return false;
  }
  file = {path, Origin::named, status.st_size};
  return true;
}

void CorpusWalker::enter(std::string path) {
  const std::unique_ptr<DIR, CloseFolder> folder(::opendir(path.c_str()));
  DELTAPORT_VALIDATE(folder != nullptr, DataError, path, ": cannot read the folder: ", std::strerror(errno));
  Folder f;
  f.path = std::move(path);
  errno = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name(entry->d_name);
    if (name == "." || name == "..") continue;
    DELTAPORT_VALIDATE(f.names.size() < max_names_bytes, DataError, f.path,
                       ": too many files in one folder; spread them over several");
    f.order.push_back(static_cast<std::uint32_t>(f.names.size()));
    f.names += kind_of(*entry, f.path);
    f.names.append(name).push_back('\0');
    errno = 0;
  }
  DELTAPORT_VALIDATE(errno == 0, DataError, f.path, ": cannot read the folder: ", std::strerror(errno));
  const char* names = f.names.data();
  std::sort(f.order.begin(), f.order.end(),
            [=](std::uint32_t a, std::uint32_t b) { return path_order(names + a, names + b); });
  folders_.push_back(std::move(f));
}

bool CorpusWalker::next_entry(CorpusFile& file) {
  Folder& folder = folders_.back();
  if (folder.at == folder.order.size()) {
    folders_.pop_back();
    return false;
  }
  const char* entry = folder.names.data() + folder.order[folder.at++];
  const char* name = entry + 1;
  std::string path = folder.path + name;
  if (*entry == kind_folder) {
    enter(path + "/");
    return false;
  }
  char kind = *entry;
  struct stat status {};
  if (kind == kind_link) {  // broken ones have no target to read
    if (::stat(path.c_str(), &status) != 0)
      kind = kind_special;
    else
      kind = S_ISREG(status.st_mode) ? kind_file : kind_special;
  }
  if (kind == kind_special || !wanted(name)) {
    ++(kind == kind_special ? special_files_ : other_files_);
    return false;
  }
  DELTAPORT_VALIDATE(::stat(path.c_str(), &status) == 0, DataError, path,
                     ": cannot read: ", std::strerror(errno));
  file = {std::move(path), Origin::found, status.st_size};
  return true;
}

}  // namespace deltaport
