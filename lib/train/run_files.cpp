// SPDX-License-Identifier: Apache-2.0
#include "train/run_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "deltaport/core/error.hpp"
#include "deltaport/train/metrics.hpp"

namespace deltaport::train {
namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.flush();
  DELTAPORT_VALIDATE(file.good(), ConfigError, "cannot write ", path.string(), ": ", std::strerror(errno),
                     "; choose another run.dir");
}

}  // namespace

std::string original_name(std::size_t index, const SourceText& file) {
  std::string name = std::filesystem::path(file.path).filename().string();
  for (char& c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
    if (!plain) c = '_';
  }
  return concat(index, "-", name);
}

RunLock::RunLock(const std::string& run_dir) {
  std::error_code error;
  std::filesystem::create_directories(run_dir, error);
  DELTAPORT_VALIDATE(!error, ConfigError, "cannot create ", run_dir, ": ", error.message(),
                     "; choose another run.dir");
  const std::string path = run_dir + "/lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  DELTAPORT_VALIDATE(descriptor_ >= 0, ConfigError, "cannot write ", path, ": ", std::strerror(errno),
                     "; choose another run.dir");
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  ::close(descriptor_);
  descriptor_ = -1;
  // File systems without locks (some network mounts) are no reason to refuse a run.
  DELTAPORT_VALIDATE(reason != EWOULDBLOCK, ConfigError, run_dir,
                     " is in use by another run; wait for it, or choose another run.dir");
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool holds_earlier_run(const std::string& run_dir, const std::string& checkpoint_folder) {
  std::error_code ignored;
  const auto metrics = std::filesystem::file_size(run_dir + "/metrics.jsonl", ignored);
  if (!ignored && metrics > 0) return true;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint_folder, ignored))
    if (entry.path().filename().string().starts_with("step-")) return true;
  return false;
}

void check_nothing_is_lost(const std::string& run_dir, const std::string& checkpoint_folder) {
  const std::string path = run_dir + "/metrics.jsonl";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  const MetricsHistory earlier = read_metrics(path);
  if (earlier.checkpoints.empty()) return;
  const std::int64_t step = earlier.checkpoints.back().step;
  throw ConfigError(
      concat("nothing to resume from: ", path, " says that a checkpoint of step ", step, " was written, but ",
             checkpoint_folder,
             " holds none; put it back (checkpoint.dir or checkpoint.resume may name another place), ",
             "or move ", path, " away or choose another run.dir to start anew"));
}

void write_run_files(const std::string& run_dir, const LoadedConfig& loaded) {
  const std::filesystem::path folder(run_dir);
  const std::filesystem::path original = folder / "config.original";
  std::error_code error;
  std::filesystem::create_directories(original, error);
  DELTAPORT_VALIDATE(!error, ConfigError, "cannot create ", original.string(), ": ", error.message(),
                     "; choose another run.dir");
  write(folder / "config.resolved.yaml", loaded.print());
  for (std::size_t i = 0; i < loaded.files.size(); ++i)
    write(original / original_name(i, loaded.files[i]), loaded.files[i].text);
  std::string command;
  for (const std::string& argument : loaded.overrides) command += argument + "\n";
  for (const auto& [name, value] : loaded.environment) command += concat(name, "=", value, "\n");
  write(original / "overrides.txt", command);
}

}  // namespace deltaport::train
