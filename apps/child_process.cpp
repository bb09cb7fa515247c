// SPDX-License-Identifier: Apache-2.0
#include "child_process.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <cerrno>
#include <cstdlib>
#include <iterator>

#include "deltaport/core/error.hpp"

extern char** environ;

namespace deltaport::app {
namespace {

volatile sig_atomic_t running = 0;  // process group that signals go to
volatile sig_atomic_t came = 0;

extern "C" void forward_signal(int signal) {
  came = signal;
  if (running > 0) kill(-running, signal);
}

constexpr int signals[] = {SIGTERM, SIGINT, SIGHUP};

/// Lets the signals wait while it lives, so that none comes between a start and the wait for it.
class Blocked {
 public:
  Blocked() {
    sigset_t all;
    sigemptyset(&all);
    for (const int signal : signals) sigaddset(&all, signal);
    sigprocmask(SIG_BLOCK, &all, &before_);
  }
  ~Blocked() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
};

void check_interrupted() {
  if (came != 0) throw Interrupted{static_cast<int>(came)};
}

pid_t start(char** argv) {
  const Blocked blocked;
  check_interrupted();
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &blocked.before());
  pid_t child = 0;
  const int refused = posix_spawn(&child, "/proc/self/exe", nullptr, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  DELTAPORT_VALIDATE(refused == 0, Error, "cannot start a process of this program");
  running = child;
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (came == 0) continue;
    // It was told to end; one that does not is killed.
    for (int tenths = 0; tenths < 50; ++tenths) {
      if (waitpid(child, &status, WNOHANG) == child) return status;
      usleep(100000);
    }
    kill(-child, SIGKILL);
  }
  return status;
}

}  // namespace

struct ChildProcesses::Handlers {
  struct sigaction before[std::size(signals)];
};

ChildProcesses::ChildProcesses() : handlers_(std::make_unique<Handlers>()) {
  came = 0;
  struct sigaction action = {};
  action.sa_handler = forward_signal;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < std::size(signals); ++i) {
    struct sigaction& before = handlers_->before[i];
    sigaction(signals[i], nullptr, &before);
    // What the caller ignores (nohup) stays ignored.
    if (before.sa_handler != SIG_IGN) sigaction(signals[i], &action, nullptr);
  }
}

ChildProcesses::~ChildProcesses() {
  for (std::size_t i = 0; i < std::size(signals); ++i) sigaction(signals[i], &handlers_->before[i], nullptr);
}

void Interrupted::end() const {
  ::signal(signal, SIG_DFL);
  raise(signal);
  std::_Exit(128 + signal);
}

bool ChildProcesses::run(const std::vector<std::string>& arguments) {
  std::vector<std::string> texts = {"deltaport"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  const int status = wait_for(start(argv.data()));
  running = 0;
  check_interrupted();
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void end_with_parent(long parent) {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != parent) std::_Exit(EXIT_FAILURE);  // it ended before that
}

}  // namespace deltaport::app
