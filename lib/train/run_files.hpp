// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/config/load.hpp"

namespace deltaport::train {

/// Creates the run's folder and writes config.resolved.yaml (every key with the origin of its value) and
/// config.original/ (the files as given, the overrides and the environment variables used). Throws
/// ConfigError when the folder cannot be written.
void write_run_files(const std::string& run_dir, const LoadedConfig& loaded);

}  // namespace deltaport::train
