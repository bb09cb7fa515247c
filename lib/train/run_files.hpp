// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/config/load.hpp"

namespace deltaport::train {

/// "0-train.yaml": name under which a configuration file is kept. Numbered in the order of merging, because
/// two folders may hold files of the same name.
std::string original_name(std::size_t index, const SourceText& file);

/// Creates the run's folder and writes config.resolved.yaml (every key with the origin of its value) and
/// config.original/ (the files as given, the overrides and the environment variables used). Throws
/// ConfigError when the folder cannot be written.
void write_run_files(const std::string& run_dir, const LoadedConfig& loaded);

}  // namespace deltaport::train
