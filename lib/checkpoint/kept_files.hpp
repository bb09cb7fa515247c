// SPDX-License-Identifier: Apache-2.0
// Small files beside the weights that an imported model keeps, for its way back.
#pragma once

#include <map>
#include <string>

#include "checkpoint/file_system.hpp"

namespace deltaport::checkpoint {

/// Texts of config.json, the tokenizer's files and the like, by name, as far as the folder has them. Throws
/// Error (exit code 2) for one that cannot be read.
std::map<std::string, std::string> read_kept_files(const files::Path& folder);
/// Those of these files, by name, that read_kept_files() would give.
std::map<std::string, std::string> kept_among(const std::map<std::string, std::string>& texts);

}  // namespace deltaport::checkpoint
