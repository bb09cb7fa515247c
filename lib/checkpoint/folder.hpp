// SPDX-License-Identifier: Apache-2.0
// Names inside a folder of checkpoints, and which of them may be loaded.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.hpp"
#include "checkpoint/manifest.hpp"
#include "deltaport/checkpoint/training_state.hpp"

namespace deltaport::checkpoint {

using files::Path;

inline constexpr const char* commit_name = "COMMIT";
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* state_name = "state.json";
inline constexpr const char* config_name = "config/run.yaml";
inline constexpr const char* latest_name = "latest";
inline constexpr const char* unfinished_suffix = ".tmp";
inline constexpr const char* replaced_suffix = ".replaced.tmp";

/// "step-00001000"
std::string step_folder_name(std::int64_t step);
/// The step of "step-00001000" with `suffix` behind it; nothing for other names.
std::optional<std::int64_t> step_of(const std::string& name, const std::string& suffix = "");

struct StepFolder {
  std::int64_t step;
  Path path;
};
/// Folders step-* in `dir` that hold COMMIT, newest first. A missing `dir` holds none.
std::vector<StepFolder> committed_folders(const Path& dir);
/// What interrupted saves and removals left: unfinished and replaced folders of steps up to `newest_step`,
/// and folders step-* without COMMIT below it.
std::vector<Path> leftovers(const Path& dir, std::int64_t newest_step);

/// Reads and parses the manifest of a committed folder. Throws CheckpointError.
Manifest read_manifest(const Path& checkpoint);
/// Checks one file of the manifest. Throws CheckpointError naming it.
void verify_file(const Path& checkpoint, const std::string& name, const FileDigest& digest, Verify verify);
/// True when the folder has COMMIT, a manifest, and all files with their sizes.
bool is_usable(const Path& checkpoint);

/// Removes checkpoints older than the newest `keep_last` usable ones that are not newer than `step`; returns
/// what went wrong.
std::vector<std::string> apply_retention(const Path& dir, std::int64_t step, const RetentionPolicy& policy);

}  // namespace deltaport::checkpoint
