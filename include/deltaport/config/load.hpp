// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deltaport/config/run_config.hpp"

/// Strict loading of a run's configuration.
/// Precedence: built-in default < model.preset < files (left to right; sections merge, lists are replaced)
/// < environment (DELTAPORT_TRAIN__STEPS=100) < command line (--train.steps=100).
namespace deltaport {

/// Whether the command needs training data: `plan` and `print-config` do not.
enum class DataSection { required, optional };

struct LoadRequest {
  /// Merged left to right. May be empty.
  std::vector<std::string> files;
  /// Arguments as typed: "--train.steps=100", "--train.steps" "100", "--set" "train.steps=100".
  std::vector<std::string> overrides;
  /// Variables to use in place of the process's own environment.
  std::optional<std::map<std::string, std::string>> environment;
  DataSection data = DataSection::required;
};

/// A file exactly as it was read.
struct SourceText {
  std::string path;
  std::string text;
};

enum class PrintKeys {
  all,
  changed  ///< only keys whose value is not the built-in default
};

/// A checked configuration and where each value came from.
struct LoadedConfig {
  RunConfig config;
  /// Key to "default", "preset qwen3.5-0.8b", "train.yaml:14", "environment" or "--train.steps".
  std::map<std::string, std::string> origins;
  std::vector<SourceText> files;       ///< verbatim
  std::vector<std::string> overrides;  ///< verbatim
  /// The DELTAPORT_* variables and those named by ${env:NAME}, with the values used.
  std::map<std::string, std::string> environment;
  std::vector<std::string> warnings;  ///< "file: warning: text", for standard error

  /// Resolved YAML with the origin of each key as a comment.
  std::string print(PrintKeys keys = PrintKeys::all) const;
  /// Resolved YAML of all keys without comments; parse_canonical() gives the same configuration again.
  std::string canonical_yaml() const;
};

/// Loads, merges, resolves ${key}, ${env:NAME} and ${env:NAME:-text}, and checks. Throws ConfigError whose
/// text is the whole report: every problem found, as file:line:column with the source line, at most 20 of
/// them.
LoadedConfig load_config(const LoadRequest& request);

/// Sorts what a command line holds besides its own options into files and overrides, in order.
struct ConfigArguments {
  std::vector<std::string> files;
  std::vector<std::string> overrides;
};
ConfigArguments split_arguments(const std::vector<std::string>& arguments);

/// All keys of a configuration as YAML, without comments.
std::string canonical_yaml(const RunConfig& config);

/// Reads what canonical_yaml() wrote, e.g. from a checkpoint. No environment, no ${...}; data may be absent.
/// `name` stands for the text in errors. Throws ConfigError.
RunConfig parse_canonical(std::string_view text, const std::string& name = "configuration");

}  // namespace deltaport
