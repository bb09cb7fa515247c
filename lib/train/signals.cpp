// SPDX-License-Identifier: Apache-2.0
#include "deltaport/train/signals.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <utility>

namespace deltaport {
namespace {

// One number carries request and cause over the ranks: request * 256 + signal, where signal 0 is a file.
constexpr int scale = 256;
constexpr std::array watched{SIGTERM, SIGINT, SIGUSR1, SIGUSR2};

// Written by the handler, read by the loop: one flag per kind of signal, so that none overwrites another. Atomic, not
// only volatile, because the handler may run on any thread of the process.
using Flag = std::atomic<int>;
static_assert(Flag::is_always_lock_free, "a signal handler must not lock");
constinit Flag stop_signal = 0;
constinit Flag checkpoint_signal = 0;
constinit Flag interrupted = 0;
bool watching = false;

extern "C" void deltaport_on_signal(int signal) {
  if (signal == SIGUSR2) {
    checkpoint_signal = signal;
    return;
  }
  if (signal == SIGINT) {
    if (interrupted.exchange(1) != 0) _exit(130);
  }
  stop_signal = signal;
}

std::string cause_of(int request, int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return request == static_cast<int>(Request::checkpoint_and_stop) ? "file STOP" : "file CHECKPOINT_NOW";
  }
}

int request_from_signals() {
  if (const int signal = stop_signal.exchange(0))
    return static_cast<int>(Request::checkpoint_and_stop) * scale + signal;
  if (const int signal = checkpoint_signal.exchange(0))
    return static_cast<int>(Request::checkpoint) * scale + signal;
  return 0;
}

}  // namespace

struct SignalWatch::Impl {
  std::string run_dir;
  std::array<struct sigaction, watched.size()> earlier{};
  std::chrono::steady_clock::time_point last_look{};
};

SignalWatch::SignalWatch(const std::string& run_dir) : impl_(std::make_unique<Impl>()) {
  DELTAPORT_VALIDATE(!std::exchange(watching, true), Error, "only one SignalWatch can exist at a time");
  impl_->run_dir = run_dir;
  stop_signal = 0;
  checkpoint_signal = 0;
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = deltaport_on_signal;
  action.sa_flags = SA_RESTART;  // reads and writes in progress go on
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &action, &impl_->earlier[i]);
}

SignalWatch::~SignalWatch() {
  for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &impl_->earlier[i], nullptr);
  watching = false;
}

int SignalWatch::request_from_files() {
  const auto now = std::chrono::steady_clock::now();
  if (impl_->run_dir.empty() || now - impl_->last_look < std::chrono::seconds(1)) return 0;
  impl_->last_look = now;
  // Removed when obeyed: a restarted job must not stop again. Removal says whether the file was there.
  std::error_code ignored;
  const std::filesystem::path dir(impl_->run_dir);
  if (std::filesystem::remove(dir / "STOP", ignored))
    return static_cast<int>(Request::checkpoint_and_stop) * scale;
  if (std::filesystem::remove(dir / "CHECKPOINT_NOW", ignored))
    return static_cast<int>(Request::checkpoint) * scale;
  return 0;
}

Decision SignalWatch::decide(const Communicator& communicator) {
  int mine = request_from_signals();
  if (communicator.is_root()) mine = std::max(mine, request_from_files());
  const int strongest = static_cast<int>(communicator.max<std::int64_t>(mine));
  if (strongest == 0) return {};
  const int request = strongest / scale;
  return {static_cast<Request>(request), cause_of(request, strongest % scale)};
}

}  // namespace deltaport
