// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/export_folder.hpp"

#include <algorithm>
#include <cstdio>

#include "checkpoint/hugging_face_folder.hpp"
#include "checkpoint/input_file.hpp"
#include "checkpoint/safetensors_header.hpp"

namespace deltaport::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t chunk_bytes = std::uint64_t{4} << 20;

void copy_range(const files::InputFile& from, std::uint64_t bytes, files::OutputFile& to) {
  std::vector<char> buffer(
      static_cast<std::size_t>(std::min(chunk_bytes, std::max<std::uint64_t>(bytes, 1))));
  for (std::uint64_t first = 0; first < bytes; first += chunk_bytes) {
    const std::uint64_t count = std::min(chunk_bytes, bytes - first);
    from.read(first, count, buffer.data());
    to.write(buffer.data(), count);
  }
}

Path real_path(const Path& path) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
}

bool is_within(const Path& inner, const Path& outer) {
  const auto [rest, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return rest == outer.end();
}

}  // namespace

void check_export_output(const Path& output, Overwrite overwrite) {
  std::error_code ignored;
  if (!fs::exists(output, ignored)) return;
  if (overwrite == Overwrite::refuse)
    files::raise(
        FileOrigin::user,
        concat(output.string(), " exists; choose another --output, or --force to replace an earlier export"));
  if (!is_hugging_face_folder(output))
    files::raise(FileOrigin::user, concat(output.string(),
                                          " is not a Hugging Face checkpoint and is not replaced; choose "
                                          "another --output"));
}

void check_apart(const Path& output, const Path& read) {
  if (read.empty()) return;
  const Path a = real_path(output), b = real_path(read);
  if (is_within(a, b) || is_within(b, a))
    files::raise(FileOrigin::user, concat("--output ", output.string(), " and ", read.string(),
                                          ", which is read, must lie apart"));
}

void write_folder(const Path& output, const std::function<void(const Path&)>& fill) {
  const Path name = fs::absolute(output).lexically_normal();
  const Path target = name.has_filename() ? name : name.parent_path();
  const Path unfinished = target.string() + ".tmp", replaced = target.string() + ".replaced.tmp";
  files::make_directories(target.parent_path());
  files::remove_tree(unfinished);
  files::make_directory(unfinished);
  try {
    fill(unfinished);
    files::sync_directory(unfinished);
    std::error_code ignored;
    if (fs::exists(target, ignored)) {
      files::remove_tree(replaced);
      files::rename_path(target, replaced);
    }
    files::rename_path(unfinished, target);
    files::sync_directory(target.parent_path());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(unfinished, ignored);
    if (!fs::exists(target, ignored) && fs::exists(replaced, ignored)) fs::rename(replaced, target, ignored);
    throw;
  }
  files::remove_tree(replaced);
}

std::string weight_file_name(std::size_t file, std::size_t files) {
  if (files == 1) return "model.safetensors";
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", file + 1, files);
  return text;
}

void copy_header(const Path& from, files::OutputFile& to) {
  const files::InputFile file(from, FileOrigin::user);
  std::uint64_t length = 0;
  file.read(0, safetensors::length_bytes, &length);
  copy_range(file, safetensors::length_bytes + length, to);
}

void write_tensor(const ShardSet::Found& tensor, FileDtype dtype, std::uint64_t bytes,
                  files::OutputFile& to) {
  std::vector<char> buffer(
      static_cast<std::size_t>(std::min(chunk_bytes, std::max<std::uint64_t>(bytes, 1))));
  for (std::uint64_t first = 0; first < bytes; first += chunk_bytes) {
    const std::uint64_t count = std::min(chunk_bytes, bytes - first);
    read_as(tensor, dtype, first, count, buffer.data());
    to.write(buffer.data(), count);
  }
}

void copy_whole_file(const Path& from, const Path& to) {
  const files::InputFile file(from, FileOrigin::user);
  files::OutputFile out(to);
  copy_range(file, file.bytes(), out);
  out.finish();
}

std::vector<Path> other_files(const Path& folder, const std::set<std::string>& written,
                              std::vector<std::string>& notes) {
  static const std::set<std::string> weights = {".bin", ".pt",      ".pth",  ".gguf",
                                                ".h5",  ".msgpack", ".onnx", ".safetensors"};
  std::vector<Path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (written.count(name)) continue;
    if (!entry.is_regular_file(ignored) || name.starts_with("."))
      notes.push_back(name + " of the base is not taken over: no plain file");
    else if (weights.count(entry.path().extension().string()))
      notes.push_back(name + " of the base is not taken over: other weights");
    else
      found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  std::sort(notes.begin(), notes.end());
  return found;
}

}  // namespace deltaport::checkpoint
