// SPDX-License-Identifier: Apache-2.0
// A job that does nothing but listen, as a training loop does between its steps; signal_job_test.sh sends it
// signals.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "deltaport/comm/session.hpp"
#include "deltaport/train/signals.hpp"

namespace {

using namespace deltaport;

int body(Session& session, const std::string& run_dir) {
  const Communicator& world = session.world();
  SignalWatch watch(run_dir);
  std::string pids;
  for (const std::string& pid : world.gather(std::to_string(getpid()))) pids += ' ' + pid;
  if (world.is_root()) {
    std::printf("ready%s\n", pids.c_str());
    std::fflush(stdout);
  }
  for (int step = 0; step < 600; ++step) {
    const Decision decision = watch.decide(world);
    if (decision.request == Request::checkpoint && world.is_root()) {
      std::printf("checkpoint: %s\n", decision.cause.c_str());
      std::fflush(stdout);
    }
    if (decision.request == Request::checkpoint_and_stop) {
      usleep(300000);  // a checkpoint takes time
      if (world.is_root()) std::printf("stopped: %s\n", decision.cause.c_str());
      return static_cast<int>(ExitCode::requeue);
    }
    usleep(50000);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string run_dir = argc > 1 ? argv[1] : "";
  return run_session(argc, argv, {}, [&](Session& session) { return body(session, run_dir); });
}
