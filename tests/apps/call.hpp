// SPDX-License-Identifier: Apache-2.0
// The program as a user calls it.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "deltaport/core/error.hpp"

namespace deltaport::test {

struct Outcome {
  int exit_code = -1;  // -1: ended by a signal
  std::string text;    // standard output and standard error together, or what was left of them
};

/// Runs shell commands.
inline Outcome shell(const std::string& commands) {
  // Standard error first: a redirection in the commands then takes standard output alone.
  FILE* pipe = popen(("exec 2>&1; " + commands).c_str(), "r");
  if (pipe == nullptr) throw Error("popen failed");
  Outcome outcome;
  char block[4096];
  for (std::size_t size; (size = fread(block, 1, sizeof block, pipe)) > 0;) outcome.text.append(block, size);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

/// Runs `deltaport ARGUMENTS`; they may hold redirections.
inline Outcome call(const std::string& arguments) {
  return shell(DELTAPORT_EXECUTABLE " " + arguments);
}

}  // namespace deltaport::test
