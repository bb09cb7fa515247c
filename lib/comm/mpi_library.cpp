// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_library.hpp"

#include <chrono>
#include <thread>
#include <vector>

#include "comm/mpi_check.hpp"
#include "deltaport/comm/session.hpp"

namespace deltaport {
namespace comm {
namespace {

constexpr int failure_tag = 7;

class MpiFailureChannel final : public FailureChannel {
 public:
  MpiFailureChannel() {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiFailureChannel() override {
    if (mpi_is_active()) MPI_Comm_free(&comm_);
  }
  MpiFailureChannel(const MpiFailureChannel&) = delete;
  MpiFailureChannel& operator=(const MpiFailureChannel&) = delete;

  FailureRole agree(double grace_seconds) override {
    using Clock = std::chrono::steady_clock;
    std::vector<MPI_Request> requests(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
    for (int r = 0; r < size_; ++r)
      if (r != rank_)
        MPI_Isend(nullptr, 0, MPI_BYTE, r, failure_tag, comm_, &requests[static_cast<std::size_t>(r)]);
    int missing = size_ - 1;
    bool lower_failed = false;
    const auto deadline = Clock::now() + std::chrono::duration<double>(grace_seconds);
    while (missing > 0 && Clock::now() < deadline) {
      int arrived = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, failure_tag, comm_, &arrived, &status);
      if (arrived == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, failure_tag, comm_, MPI_STATUS_IGNORE);
      lower_failed = lower_failed || status.MPI_SOURCE < rank_;
      --missing;
    }
    if (missing > 0) return lower_failed ? FailureRole::silent : FailureRole::speaker;
    MPI_Waitall(size_, requests.data(), MPI_STATUSES_IGNORE);
    return FailureRole::collective;
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

bool start_mpi(int& argc, char**& argv) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return false;
  int provided = MPI_THREAD_SINGLE;
  // Serialized: one thread at a time calls MPI, not always the same one (a checkpoint writer may).
  check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  return true;
}

void stop_mpi() {
  MPI_Finalize();
}

std::unique_ptr<FailureChannel> open_failure_channel() {
  return std::make_unique<MpiFailureChannel>();
}

}  // namespace comm

MpiInfo mpi_info() {
  MpiInfo info;
  info.built_in = true;
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0, version = 0, subversion = 0, level = 0;
  MPI_Get_library_version(text, &length);
  MPI_Get_version(&version, &subversion);
  info.library = text;
  info.standard = concat(version, '.', subversion);
  info.thread_level = "not started";
  if (!comm::mpi_is_active()) return info;
  MPI_Query_thread(&level);
  info.thread_level = level == MPI_THREAD_SINGLE       ? "single"
                      : level == MPI_THREAD_FUNNELED   ? "funneled"
                      : level == MPI_THREAD_SERIALIZED ? "serialized"
                                                       : "multiple";
  return info;
}

}  // namespace deltaport
