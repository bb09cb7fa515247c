// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "deltaport/config/load.hpp"
#include "deltaport/core/error.hpp"

namespace deltaport::test {

/// A directory that goes away with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "deltaport-config-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw Error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using Variables = std::map<std::string, std::string>;

/// Loads one text as a file with overrides and variables; nothing of the process's environment.
inline LoadedConfig load_text(const std::string& text, const std::vector<std::string>& overrides = {},
                              const Variables& environment = {}, DataSection data = DataSection::optional) {
  TemporaryDirectory directory;
  LoadRequest request;
  request.files = {directory.write("run.yaml", text)};
  request.overrides = overrides;
  request.environment = environment;
  request.data = data;
  return load_config(request);
}

/// Without files.
inline LoadedConfig load_arguments(const std::vector<std::string>& overrides,
                                   const Variables& environment = {}) {
  LoadRequest request;
  request.overrides = overrides;
  request.environment = environment;
  request.data = DataSection::optional;
  return load_config(request);
}

/// The report of a text that must be refused; the file's directory is cut away. Empty (and a failure) when
/// accepted.
inline std::string report_of(const std::string& text, const std::vector<std::string>& overrides = {},
                             const Variables& environment = {}, DataSection data = DataSection::optional) {
  try {
    load_text(text, overrides, environment, data);
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::bad_input);
    std::string report = e.what();
    for (std::size_t end = report.find("/run.yaml"); end != std::string::npos;
         end = report.find("/run.yaml")) {
      const std::size_t begin = report.find_last_of(" '\n", end) + 1;
      report.erase(begin, end + 1 - begin);
    }
    return report;
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return "";
}

inline std::string argument_report(const std::vector<std::string>& overrides,
                                   const Variables& environment = {}) {
  try {
    load_arguments(overrides, environment);
  } catch (const ConfigError& e) {
    return e.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

/// A predicate with a readable failure.
inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no \"" << part << "\" in:\n" << text;
}

}  // namespace deltaport::test
