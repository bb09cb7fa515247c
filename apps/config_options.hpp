// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "command.hpp"
#include "deltaport/config/load.hpp"

namespace deltaport::app {

/// Lets a subcommand take `FILE... --section.key=value ...`. The arguments are sorted by request_of(),
/// because CLI11 would take the 100 of "--train.steps 100" for a file.
/// `notes` stands before that in the help's last lines.
void accept_config(CLI::App& command, const std::string& notes = "");

/// What the command line gave. `command` must have been parsed.
LoadRequest request_of(const CLI::App& command, DataSection data);

/// load_config() with its warnings on standard error.
LoadedConfig load_with_warnings(const LoadRequest& request);

}  // namespace deltaport::app
