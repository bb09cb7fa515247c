// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/config/load.hpp"

namespace deltaport::train {

/// Keeps a second process out of a run's folder for the length of a scope (an advisory lock on <run_dir>/lock; gone with
/// the process, however it ends). Creates the folder. Throws ConfigError when another process holds it.
class RunLock {
 public:
  explicit RunLock(const std::string& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// Whether the folders hold metrics or checkpoints, usable or not.
bool holds_earlier_run(const std::string& run_dir, const std::string& checkpoint_folder);

/// For a run that starts afresh because no checkpoint was found: throws ConfigError when its metrics say that one was
/// written, because then the checkpoints are what is missing, and starting would cut the metrics off.
void check_nothing_is_lost(const std::string& run_dir, const std::string& checkpoint_folder);

/// "0-train.yaml": name under which a configuration file is kept. Numbered in the order of merging, because
/// two folders may hold files of the same name.
std::string original_name(std::size_t index, const SourceText& file);

/// Creates the run's folder and writes config.resolved.yaml (every key with the origin of its value) and
/// config.original/ (the files as given, the overrides and the environment variables used). Throws
/// ConfigError when the folder cannot be written.
void write_run_files(const std::string& run_dir, const LoadedConfig& loaded);

}  // namespace deltaport::train
