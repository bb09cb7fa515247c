// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "deltaport/comm/communicator.hpp"

namespace deltaport {

/// What the training loop should do before its next step; ordered, the stronger wins.
enum class Request { none, checkpoint, checkpoint_and_stop };

/// A request and what caused it.
struct Decision {
  Request request = Request::none;
  std::string cause;  ///< "SIGTERM", "file STOP"; empty for none
};

/// Listens, for the length of its scope, to
///   SIGTERM, SIGUSR1, SIGINT    write a checkpoint and stop (a second SIGINT ends the process at once)
///   SIGUSR2                     write a checkpoint and go on
///   <run_dir>/STOP              as SIGTERM, and
///   <run_dir>/CHECKPOINT_NOW    as SIGUSR2, where signals do not reach the ranks; removed when obeyed
/// Handlers only set a flag. One object at a time per process (throws Error for a second).
class SignalWatch {
 public:
  /// An empty run_dir means that no files are looked for.
  explicit SignalWatch(const std::string& run_dir);
  /// Puts the earlier handlers back.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// The strongest request that reached any rank since the last call, the same on all ranks. Collective; call
  /// once per step and at other long stretches. Rank 0 looks for the files, at most once a second.
  Decision decide(const Communicator& communicator);

 private:
  int request_from_files();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltaport
