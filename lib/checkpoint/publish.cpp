// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/publish.hpp"

#include <sstream>
#include <system_error>

namespace deltaport::checkpoint {

namespace fs = std::filesystem;

namespace {

void prepare(const Path& dir, const Path& unfinished, const Contents& contents) {
  files::make_directories(fs::absolute(dir));
  files::remove_tree(unfinished);
  std::uint64_t needed = contents.shard_bytes;
  for (const auto& text : contents.texts) needed += text.second.size();
  needed += needed / 10;
  const std::uint64_t available = files::available_bytes(dir);
  DELTAPORT_VALIDATE(available >= needed, CheckpointError, "not enough space for a checkpoint in ",
                     dir.string(), ": ", needed >> 20, " MiB needed (with 10 % to spare), ", available >> 20,
                     " MiB free; free some space or set checkpoint.dir to another file system");
  files::make_directory(unfinished);
}

// One line per file: bytes, hash, name.
std::string encode(const std::map<std::string, FileDigest>& digests) {
  std::ostringstream out;
  for (const auto& [name, digest] : digests)
    out << digest.bytes << ' ' << digest.xxh3_128 << ' ' << name << '\n';
  return out.str();
}

void decode(const std::string& text, std::map<std::string, FileDigest>& digests) {
  std::istringstream in(text);
  FileDigest digest;
  std::string name;
  while (in >> digest.bytes >> digest.xxh3_128 >> name) digests[name] = digest;
}

/// Everything rank 0 adds, up to and including COMMIT, each made durable before the next means anything.
Manifest complete(const Path& unfinished, const Contents& contents, const std::vector<std::string>& shards) {
  Manifest manifest = contents.manifest;
  for (const std::string& text : shards) decode(text, manifest.files);
  for (const auto& [name, text] : contents.texts) {
    const Path path = unfinished / name;
    if (path.parent_path() != unfinished) files::make_directories(path.parent_path());
    manifest.files[name] = files::write_text(path, text);
    if (path.parent_path() != unfinished) files::sync_directory(path.parent_path());
  }
  files::write_text(unfinished / manifest_name, to_json(manifest));
  files::sync_directory(unfinished);
  files::write_text(unfinished / commit_name, "");
  files::sync_directory(unfinished);
  return manifest;
}

/// Gives the finished folder its name. A checkpoint of the same step, left by a run that was rewound or found
/// damaged, makes room first; returns where it went.
Path give_name(const Path& unfinished, const Path& final_path, const Path& dir) {
  Path replaced;
  std::error_code ignored;
  if (fs::exists(final_path, ignored)) {
    replaced = final_path.string() + replaced_suffix;
    files::remove_tree(replaced);
    files::rename_path(final_path, replaced);
  }
  files::rename_path(unfinished, final_path);
  files::sync_directory(dir);
  return replaced;
}

void point_latest(const Path& dir, const std::string& name) {
  files::write_text(dir / latest_name, name + "\n");
  files::sync_directory(dir);
}

/// Only now may old things go; what cannot be removed costs space, not the checkpoint.
std::vector<std::string> clean_up(const Path& dir, const Path& replaced, std::int64_t step,
                                  const RetentionPolicy& retention) {
  std::vector<std::string> warnings;
  try {
    if (!replaced.empty()) files::remove_tree(replaced);
    warnings = apply_retention(dir, step, retention);
  } catch (const std::exception& e) {
    warnings.push_back(concat("old checkpoint not removed: ", e.what()));
  }
  return warnings;
}

void discard(const Path& unfinished) noexcept {
  try {
    files::remove_tree(unfinished);
  } catch (...) {  // the error that brought us here is the one to report
  }
}

bool is_same_folder(const Path& a, const Path& b) {
  std::error_code ignored;
  return !a.empty() && fs::equivalent(a, b, ignored);
}

}  // namespace

SavedCheckpoint publish(const Communicator& comm, const Path& dir, const Contents& contents,
                        const RetentionPolicy& retention) {
  const std::string name = step_folder_name(contents.manifest.step);
  SavedCheckpoint saved;
  saved.path = dir / name;
  const Path unfinished = dir / (name + unfinished_suffix);
  std::int64_t is_loaded_from = comm.is_root() && is_same_folder(retention.loaded_from, saved.path) ? 1 : 0;
  if (comm.max(is_loaded_from) == 1) return saved;
  Manifest manifest;
  try {
    comm.agree([&] {
      if (comm.is_root()) prepare(dir, unfinished, contents);
    });
    std::map<std::string, FileDigest> mine;
    comm.agree([&] { mine = contents.write_shards(unfinished); });
    const std::vector<std::string> shards = comm.gather(encode(mine));
    comm.agree([&] {
      if (!comm.is_root()) return;
      manifest = complete(unfinished, contents, shards);
      const Path replaced = give_name(unfinished, saved.path, dir);
      point_latest(dir, name);
      saved.warnings = clean_up(dir, replaced, contents.manifest.step, retention);
    });
  } catch (...) {
    if (comm.is_root()) discard(unfinished);
    throw;
  }
  for (const auto& file : manifest.files) saved.bytes += file.second.bytes;
  return saved;
}

}  // namespace deltaport::checkpoint
