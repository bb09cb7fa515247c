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

/// Forwards the signals while it lives. They wait until release(), so that none comes between start and wait.
class Forwarding {
 public:
  Forwarding() {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : signals) sigaddset(&blocked, signal);
    sigprocmask(SIG_BLOCK, &blocked, &mask_);
    struct sigaction action = {};
    action.sa_handler = forward_signal;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < count; ++i) {
      sigaction(signals[i], nullptr, &before_[i]);
      // What the caller ignores (nohup) stays ignored.
      if (before_[i].sa_handler != SIG_IGN) sigaction(signals[i], &action, nullptr);
    }
  }
  ~Forwarding() {
    for (int i = 0; i < count; ++i) sigaction(signals[i], &before_[i], nullptr);
    release();
    running = 0;
  }
  Forwarding(const Forwarding&) = delete;
  Forwarding& operator=(const Forwarding&) = delete;
  const sigset_t& mask_before() const { return mask_; }
  void release() const { sigprocmask(SIG_SETMASK, &mask_, nullptr); }

 private:
  static constexpr int signals[] = {SIGTERM, SIGINT, SIGHUP};
  static constexpr int count = 3;
  sigset_t mask_;
  struct sigaction before_[count];
};

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

void Interrupted::end() const {
  ::signal(signal, SIG_DFL);
  raise(signal);
  std::_Exit(128 + signal);
}

bool run_self(const std::vector<std::string>& arguments) {
  std::vector<std::string> texts = {"deltaport"};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  came = 0;
  const Forwarding forwarding;
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &forwarding.mask_before());
  pid_t child = 0;
  const int refused = posix_spawn(&child, "/proc/self/exe", nullptr, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  DELTAPORT_VALIDATE(refused == 0, Error, "cannot start a process of this program");
  running = child;
  forwarding.release();
  const int status = wait_for(child);
  if (came != 0) throw Interrupted{static_cast<int>(came)};
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void end_with_parent(long parent) {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != parent) std::_Exit(EXIT_FAILURE);  // it ended before that
}

}  // namespace deltaport::app
