// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/folder.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <system_error>

namespace deltaport::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "step-";
constexpr std::size_t min_digits = 8;

bool is_committed(const Path& checkpoint) {
  std::error_code ignored;
  return fs::is_regular_file(checkpoint / commit_name, ignored);
}

std::vector<Path> entries_of(const Path& dir) {
  std::vector<Path> entries;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  const bool is_missing = error == std::errc::no_such_file_or_directory;
  DELTAPORT_VALIDATE(!error || is_missing, CheckpointError, "cannot list ", dir.string(), ": ",
                     error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace

std::string step_folder_name(std::int64_t step) {
  DELTAPORT_VALIDATE(step >= 0, CheckpointError, "checkpoint of step ", step);
  char text[40];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::optional<std::int64_t> step_of(const std::string& name, const std::string& suffix) {
  if (name.size() < prefix.size() + min_digits + suffix.size()) return std::nullopt;
  const std::size_t end = name.size() - suffix.size();
  if (name.compare(0, prefix.size(), prefix) != 0 || name.compare(end, suffix.size(), suffix) != 0)
    return std::nullopt;
  std::int64_t step = 0;
  const auto parsed = std::from_chars(name.data() + prefix.size(), name.data() + end, step);
  if (parsed.ec != std::errc() || parsed.ptr != name.data() + end || step < 0) return std::nullopt;
  return step;
}

std::vector<StepFolder> committed_folders(const Path& dir) {
  std::vector<StepFolder> folders;
  for (const Path& path : entries_of(dir)) {
    const auto step = step_of(path.filename().string());
    if (step && is_committed(path)) folders.push_back({*step, path});
  }
  std::stable_sort(folders.begin(), folders.end(),
                   [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
  return folders;
}

std::vector<Path> leftovers(const Path& dir, std::int64_t newest_step) {
  std::vector<Path> found;
  for (const Path& path : entries_of(dir)) {
    const std::string name = path.filename().string();
    auto step = step_of(name, unfinished_suffix);
    if (!step) step = step_of(name, replaced_suffix);
    const auto bare = step_of(name);
    const bool unfinished = step && *step <= newest_step;
    const bool half_removed = bare && *bare < newest_step && !is_committed(path);
    if (unfinished || half_removed) found.push_back(path);
  }
  return found;
}

Manifest read_manifest(const Path& checkpoint) {
  std::error_code ignored;
  DELTAPORT_VALIDATE(fs::is_directory(checkpoint, ignored), CheckpointError, "checkpoint ",
                     checkpoint.string(), " does not exist");
  DELTAPORT_VALIDATE(is_committed(checkpoint), CheckpointError, "checkpoint ", checkpoint.string(),
                     " is unfinished: it has no file ", commit_name, "; use an older one");
  const Path path = checkpoint / manifest_name;
  return parse_manifest(files::read_text(path), path.string());
}

void verify_file(const Path& checkpoint, const std::string& name, const FileDigest& digest, Verify verify) {
  const Path path = checkpoint / name;
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  DELTAPORT_VALIDATE(!error, CheckpointError, path.string(), ": cannot be read: ", error.message());
  DELTAPORT_VALIDATE(bytes == digest.bytes, CheckpointError, path.string(), ": ", bytes, " bytes, ",
                     manifest_name, " says ", digest.bytes);
  if (verify == Verify::sizes) return;
  const FileDigest found = files::digest(path);
  DELTAPORT_VALIDATE(found == digest, CheckpointError, path.string(), ": content is damaged: XXH3-128 is ",
                     found.xxh3_128, ", ", manifest_name, " says ", digest.xxh3_128);
}

bool is_usable(const Path& checkpoint) {
  try {
    for (const auto& [name, digest] : read_manifest(checkpoint).files)
      verify_file(checkpoint, name, digest, Verify::sizes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> apply_retention(const Path& dir, std::int64_t step, const RetentionPolicy& policy) {
  const std::int64_t keep = std::max<std::int64_t>(2, policy.keep_last);
  std::vector<std::string> problems;
  std::int64_t kept = 0;
  for (const StepFolder& folder : committed_folders(dir)) {
    if (folder.step > step) continue;  // of a run that was rewound: not ours to remove
    if (kept < keep) {
      if (is_usable(folder.path)) ++kept;
      continue;
    }
    std::error_code ignored;
    if (!policy.loaded_from.empty() && fs::equivalent(folder.path, policy.loaded_from, ignored)) continue;
    try {
      files::remove_tree(folder.path);
    } catch (const std::exception& e) {
      problems.push_back(concat("old checkpoint not removed: ", e.what()));
    }
  }
  return problems;
}

}  // namespace deltaport::checkpoint

namespace deltaport {

std::optional<std::filesystem::path> find_latest(const std::filesystem::path& dir) {
  for (const auto& folder : checkpoint::committed_folders(dir))
    if (checkpoint::is_usable(folder.path)) return folder.path;
  return std::nullopt;
}

std::filesystem::path resolve_checkpoint(const std::filesystem::path& path) {
  std::error_code ignored;
  DELTAPORT_VALIDATE(std::filesystem::is_directory(path, ignored), CheckpointError, "checkpoint ",
                     path.string(), " does not exist");
  if (std::filesystem::exists(path / checkpoint::manifest_name, ignored)) return path;
  const auto latest = find_latest(path);
  DELTAPORT_VALIDATE(latest.has_value(), CheckpointError, path.string(),
                     " is not a checkpoint and holds no usable one");
  return *latest;
}

}  // namespace deltaport
