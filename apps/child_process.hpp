// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace deltaport::app {

/// Thrown when a signal came that should end this process: unwinding clears up, and end() does what the signal asks for.
struct Interrupted {
  int signal;
  /// Ends the process by the signal. Does not return.
  [[noreturn]] void end() const;
};

/// Runs this program again, in processes that end when this one is to end. One object at a time, used by one thread.
class ChildProcesses {
 public:
  /// From here on SIGTERM, SIGINT and SIGHUP do not end this process, but make run() throw; those that it ignores stay
  /// ignored.
  ChildProcesses();
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  /// Runs this program with `arguments` (without its name) in a process group of its own, and waits for it. The signals
  /// go to that group, which is killed when it does not end within five seconds; Interrupted is thrown once it has.
  /// Returns whether the process ended with exit code 0. Throws Error when it cannot be started.
  bool run(const std::vector<std::string>& arguments);

 private:
  struct Handlers;
  std::unique_ptr<Handlers> handlers_;
};

/// In the process that ChildProcesses started, first of all: it is killed when process `parent` ends, however that came
/// (Linux; elsewhere does nothing).
void end_with_parent(long parent);

}  // namespace deltaport::app
