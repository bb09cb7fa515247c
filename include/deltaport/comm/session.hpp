// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "deltaport/comm/communicator.hpp"
#include "deltaport/comm/placement.hpp"

namespace deltaport {

/// Whether rank 0 says in one line on standard error what was started.
enum class SummaryLine { no, yes };

struct SessionOptions {
  SummaryLine summary = SummaryLine::no;
  /// How long a failing rank waits for the others to fail too (a bad configuration fails everywhere) before
  /// it ends the job alone.
  double failure_grace_seconds = 2.0;
};

/// MPI and Kokkos for the length of a scope, in the right order. MPI comes first; then the threads and the
/// device of this rank are chosen from its affinity mask and from the ranks that share the node; then Kokkos
/// starts. OMP_NUM_THREADS and KOKKOS_NUM_THREADS win over the choice. One per process. Collective.
///
/// Throws CommError when the launcher started several processes but MPI sees one (a launcher of another MPI),
/// unless DELTAPORT_ALLOW_SINGLE_RANK=1 is set.
class Session {
 public:
  Session(int& argc, char**& argv, const SessionOptions& options = {});
  /// Kokkos, then MPI. When an exception passes through on one rank of several, ends the whole job with one
  /// message instead, because the other ranks may be waiting; run_session() does better, since it knows the
  /// exception.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Communicator& world() const;
  /// Threads of this rank's host kernels.
  int threads() const;
  /// Index of this rank's device among those it sees; -1 on host builds.
  int device() const;
  /// One line: ranks, nodes, threads, devices, binding. The same on every rank.
  const std::string& summary() const;
  /// Warnings about the placement (shared devices); empty when all is well. The same on every rank.
  const std::string& placement_warning() const;

 private:
  friend int run_session(int&, char**&, const SessionOptions&, const std::function<int(Session&)>&);
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  int run(const SessionOptions& options, const std::function<int(Session&)>& body);
  int conclude_failure(const std::string& message, ExitCode code);
  std::unique_ptr<Impl> impl_;
};

/// Runs `body` in a session and returns the process's exit code. An exception is printed once for the whole
/// job:
/// - CollectiveError, or any exception on all ranks within the grace: rank 0 prints, all ranks end in order;
/// - an exception on some ranks only: the lowest of them prints "rank N: ...", and MPI_Abort ends the others.
int run_session(int& argc, char**& argv, const SessionOptions& options,
                const std::function<int(Session&)>& body);

/// What the launcher started against what MPI sees: a text that says what is wrong, or an empty one.
/// `environment` returns the value of a variable or nullptr.
std::string launch_mismatch(int size, const std::function<const char*(const char*)>& environment);

struct MpiInfo {
  bool built_in = false;
  std::string library;       ///< the library's own description; empty without MPI
  std::string standard;      ///< "3.1"
  std::string thread_level;  ///< "funneled", "serialized", ...; "not started" outside a session
};
MpiInfo mpi_info();

}  // namespace deltaport
