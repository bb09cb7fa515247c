// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace deltaport::app {

/// "; did you mean '...'?" with the shortest candidate that begins with `word`, or the nearest one; else empty.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates);

/// The same for an option (`--name` or `--name=value`) among those of `app`.
std::string did_you_mean_option(const std::string& word, const CLI::App& app);

/// The words of `words` that look like options, up to a `--`, and that neither `app` nor a command above it has.
std::vector<std::string> unknown_options(const std::vector<std::string>& words, const CLI::App& app);

}  // namespace deltaport::app
