// SPDX-License-Identifier: Apache-2.0
// A folder of files for other programs that appears whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/file_system.hpp"
#include "checkpoint/shards.hpp"
#include "deltaport/checkpoint/hugging_face.hpp"

namespace deltaport::checkpoint {

/// Throws Error (exit code 2) when `output` exists and may not be replaced: not asked for, or not a Hugging
/// Face folder.
void check_export_output(const Path& output, Overwrite overwrite);
/// Throws Error (exit code 2) when the output is, holds or is within a folder that is read.
void check_apart(const Path& output, const Path& read);

/// Builds `output`.tmp with `fill`, flushes it, and gives it its name; an earlier `output` is removed last.
/// What `fill` throws passes, and the unfinished folder is removed.
void write_folder(const Path& output, const std::function<void(const Path& unfinished)>& fill);

/// "model.safetensors", or "model-00002-of-00003.safetensors" for file 1 of 3.
std::string weight_file_name(std::size_t file, std::size_t files);

/// Copies length and JSON of a safetensors file.
void copy_header(const Path& from, files::OutputFile& to);
/// Writes a tensor's `bytes` bytes as `dtype`, at most 4 MiB at a time.
void write_tensor(const ShardSet::Found& tensor, FileDtype dtype, std::uint64_t bytes, files::OutputFile& to);
/// Copies a whole file, following links.
void copy_whole_file(const Path& from, const Path& to);

/// Files of a base folder that a merged one takes over, in the order of their names; `written` names those
/// that hold the model. Subfolders, hidden files and other weights stay behind, each with a note.
std::vector<Path> other_files(const Path& folder, const std::set<std::string>& written,
                              std::vector<std::string>& notes);

}  // namespace deltaport::checkpoint
