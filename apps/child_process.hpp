// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace deltaport::app {

/// Thrown when a signal came that should end this process: unwinding clears up, and end() does what the signal asks for.
struct Interrupted {
  int signal;
  /// Ends the process by the signal. Does not return.
  [[noreturn]] void end() const;
};

/// Runs this program again with `arguments` (without its name), in a process group of its own, and waits for it. SIGTERM,
/// SIGINT and SIGHUP meanwhile go to that group, which is killed when it does not end within five seconds; Interrupted is
/// thrown once it has. Returns whether the process ended with exit code 0. Throws Error when it cannot be started. For one
/// thread of the process.
bool run_self(const std::vector<std::string>& arguments);

/// In the process that run_self() started, first of all: it is killed when process `parent` ends, however that came
/// (Linux; elsewhere does nothing).
void end_with_parent(long parent);

}  // namespace deltaport::app
