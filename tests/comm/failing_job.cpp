// SPDX-License-Identifier: Apache-2.0
// A small job that ends badly in the way its first argument names; job_test.sh runs it under mpirun.
#include <csignal>
#include <cstdio>
#include <string>

#include "deltaport/comm/session.hpp"

namespace {

using namespace deltaport;

int body(Session& session, const std::string& way) {
  const Communicator& world = session.world();
  const int last = world.size() - 1;
  if (way == "all-throw") throw ConfigError("run.yaml:3:1: unknown key");
  if (way == "one-throws" && world.rank() == last) throw DataError("train.bin: truncated");
  if (way == "two-throw" && world.rank() > 0) throw DataError("train.bin: truncated");
  if (way == "agreed") world.check_all(world.rank() == last ? "disk full" : "", ExitCode::checkpoint);
  if (way == "unknown-exception" && world.rank() == last) throw std::length_error("vector too long");
  if (way == "killed" && world.rank() == last) std::raise(SIGKILL);
  if (way == "code") return 85;
  world.barrier();  // where the ranks that did not fail are waiting
  world.barrier();
  if (world.is_root()) std::puts("finished");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "";
  SessionOptions options;
  options.failure_grace_seconds = 0.5;
  try {
    return run_session(argc, argv, options, [&way](Session& session) { return body(session, way); });
  } catch (const Error& e) {
    std::fprintf(stderr, "deltaport: error: %s\n", e.what());
    return static_cast<int>(e.exit_code());
  }
}
