// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

namespace deltaport::comm {

/// Starts MPI (nothing without it); true when this call started it, so that the caller must stop it.
bool start_mpi(int& argc, char**& argv);
void stop_mpi();

/// How a rank that caught an exception should go on.
enum class FailureRole {
  collective,  ///< all ranks failed: end in order, rank 0 speaks
  speaker,     ///< this is the lowest failing rank: print and abort
  silent,      ///< a lower rank speaks and aborts
};

/// Its own communicator, so that messages about a failure never meet those of the work that failed.
class FailureChannel {
 public:
  virtual ~FailureChannel() = default;
  /// Tells all ranks that this one has failed and finds out who else has, waiting up to `grace_seconds`.
  virtual FailureRole agree(double grace_seconds) = 0;
};
/// Collective.
std::unique_ptr<FailureChannel> open_failure_channel();

}  // namespace deltaport::comm
