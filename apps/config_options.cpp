// SPDX-License-Identifier: Apache-2.0
#include "config_options.hpp"

#include <cstdio>

#include "deltaport/core/error.hpp"
#include "unknown_options.hpp"

namespace deltaport::app {

void accept_config(CLI::App& command, const std::string& notes) {
  command.allow_extras();
  command.footer(
      (notes.empty() ? "" : notes + "\n\n") +
      "FILE...               YAML files, merged left to right\n"
      "--section.key=value   override of one key (also: --section.key value, --set section.key=value)\n"
      "DELTAPORT_SECTION__KEY=value in the environment does the same, with less precedence.\n"
      "`deltaport validate --help` lists all keys.");
}

namespace {

// Words without a dot are hardly keys of the configuration: a misspelt option of the command is more likely.
void refuse_misspelt_options(const CLI::App& command) {
  for (const std::string& word : unknown_options(command.remaining(), command)) {
    if (!word.starts_with("--") || word.find('.') != std::string::npos) continue;
    const std::string guess = did_you_mean_option(word, command);
    DELTAPORT_VALIDATE(guess.empty(), ConfigError, "unknown option '", word, "'", guess);
  }
}

}  // namespace

LoadRequest request_of(const CLI::App& command, DataSection data) {
  refuse_misspelt_options(command);
  ConfigArguments arguments = split_arguments(command.remaining());
  LoadRequest request;
  request.files = std::move(arguments.files);
  request.overrides = std::move(arguments.overrides);
  request.data = data;
  return request;
}

LoadedConfig load_with_warnings(const LoadRequest& request) {
  LoadedConfig loaded = load_config(request);
  for (const std::string& warning : loaded.warnings) std::fprintf(stderr, "%s\n", warning.c_str());
  return loaded;
}

}  // namespace deltaport::app
