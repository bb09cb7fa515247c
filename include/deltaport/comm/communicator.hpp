// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deltaport/core/error.hpp"
#include "deltaport/core/runtime.hpp"
#include "deltaport/core/tensor.hpp"

namespace deltaport {

/// Thrown on every rank of a communicator at the same point of the program, with the same text and exit code:
/// one message is enough and no rank is left waiting.
class CollectiveError : public Error {
 public:
  /// `rank` is the rank that the exception is thrown on.
  CollectiveError(const std::string& message, ExitCode code, int rank) : Error(message, code), rank_(rank) {}
  /// True on the one rank that should print the message.
  bool speaks() const { return rank_ == 0; }

 private:
  int rank_;
};

/// Whether sum_gradients copies through pinned host memory: only where MPI cannot read the buffer itself
/// (CUDA builds), or always.
enum class Staging { automatic, always };

/// The ranks that train together. A handle: copies share one state. Operations are collective (every rank
/// calls them in the same order), come from one thread and have finished on return. Reductions add in the
/// order of ranks 0..N-1, on every rank the same bits, from run to run the same bits. Throws CommError when
/// MPI reports a failure. Release all copies before the Session ends.
class Communicator {
 public:
  /// One rank alone; needs no MPI.
  Communicator();
  /// All ranks of the job (a private duplicate of MPI_COMM_WORLD); one rank alone when MPI is not built in or
  /// not initialised. Collective.
  static Communicator world();

  int rank() const;
  int size() const;
  bool is_root() const { return rank() == 0; }
  /// The ranks that share this rank's node. Collective.
  Communicator node() const;
  /// Place among the ranks that share this node's memory.
  int local_rank() const;
  int local_size() const;

  void barrier() const;

  /// `bytes` bytes from `root` to all; any length.
  void broadcast(void* data, std::size_t bytes, int root = 0) const;
  /// The text of `root`, on all ranks.
  std::string broadcast(const std::string& text, int root = 0) const;
  /// The texts of all ranks in rank order on rank 0, an empty vector elsewhere.
  std::vector<std::string> gather(const std::string& text) const;

  /// In place, over small host arrays of the same length on every rank. max and min keep NaN: if any rank has
  /// one in an element, the result is NaN.
  void all_reduce_sum(double* values, std::int64_t count) const;
  void all_reduce_sum(std::int64_t* values, std::int64_t count) const;
  void all_reduce_max(double* values, std::int64_t count) const;
  void all_reduce_max(std::int64_t* values, std::int64_t count) const;
  void all_reduce_min(double* values, std::int64_t count) const;
  void all_reduce_min(std::int64_t* values, std::int64_t count) const;

  /// One value.
  template <class N>
  N sum(N value) const {
    all_reduce_sum(&value, 1);
    return value;
  }
  template <class N>
  N max(N value) const {
    all_reduce_max(&value, 1);
    return value;
  }
  template <class N>
  N min(N value) const {
    all_reduce_min(&value, 1);
    return value;
  }

  /// In-place sum over ranks of a large buffer in the execution space's memory: buckets, in each an exchange
  /// of shares, the sum of the own share in rank order, and the exchange of the sums. Fences the compute
  /// stream. Scratch (one bucket, two pinned ones on CUDA) is allocated by the first call and kept. T is
  /// float or double.
  template <class T>
  void sum_gradients(Runtime& runtime, const Tensor<T>& buffer) const;
  /// Elements per bucket of sum_gradients (default 1 Mi). The result does not depend on it.
  void set_bucket_elements(std::int64_t elements);
  void set_staging(Staging staging);

  /// When any rank brings a non-empty text, all ranks throw CollectiveError with the text of the lowest such
  /// rank
  /// ("rank 3: ..." when there are several ranks) and its exit code.
  void check_all(const std::string& error, ExitCode code = ExitCode::failure) const;
  /// Runs `work` and agrees on its outcome: an exception on any rank becomes a CollectiveError on all.
  template <class F>
  void agree(F&& work) const {
    std::string error;
    ExitCode code = ExitCode::failure;
    try {
      work();
    } catch (const Error& e) {
      error = e.what();
      code = e.exit_code();
    } catch (const std::exception& e) {
      error = e.what();
    }
    check_all(error, code);
  }

  /// Prints "deltaport: error: rank 3: message" and ends every rank of the job with `code`.
  [[noreturn]] void abort(const std::string& message, ExitCode code = ExitCode::failure) const;

 private:
  struct Impl;
  explicit Communicator(std::shared_ptr<Impl> impl);
  void reserve_pinned(std::size_t bytes) const;
  std::shared_ptr<Impl> impl_;
};

}  // namespace deltaport
