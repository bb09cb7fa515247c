// SPDX-License-Identifier: Apache-2.0
#include "train/run_files.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "deltaport/core/error.hpp"

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
  return concat(index, "-", std::filesystem::path(file.path).filename().string());
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
