// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "comm/mpi_check.hpp"
#include "comm/transport.hpp"

namespace deltaport::comm {
namespace {

// MPI counts are 32-bit ints: longer messages travel in pieces.
constexpr std::size_t piece_bytes = std::size_t{1} << 30;

template <class Call>
void in_pieces(std::size_t bytes, const Call& call) {
  for (std::size_t done = 0; done < bytes; done += piece_bytes)
    call(done, static_cast<int>(std::min(piece_bytes, bytes - done)));
}

class MpiTransport final : public Transport {
 public:
  /// Takes ownership of `comm`.
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~MpiTransport() override {
    if (mpi_is_active()) MPI_Comm_free(&comm_);
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void barrier() override { check_mpi(MPI_Barrier(comm_), "MPI_Barrier"); }

  void broadcast(void* data, std::size_t bytes, int root) override {
    in_pieces(bytes, [&](std::size_t offset, int count) {
      check_mpi(MPI_Bcast(static_cast<char*>(data) + offset, count, MPI_BYTE, root, comm_), "MPI_Bcast");
    });
  }

  void gather(const void* data, std::size_t bytes, void* received) override {
    const int count = static_cast<int>(bytes);
    check_mpi(MPI_Gather(data, count, MPI_BYTE, received, count, MPI_BYTE, 0, comm_), "MPI_Gather");
  }

  void send_to_root(const void* data, std::size_t bytes) override {
    in_pieces(bytes, [&](std::size_t offset, int count) {
      check_mpi(MPI_Send(static_cast<const char*>(data) + offset, count, MPI_BYTE, 0, 0, comm_), "MPI_Send");
    });
  }

  void receive_from(int peer, void* data, std::size_t bytes) override {
    in_pieces(bytes, [&](std::size_t offset, int count) {
      check_mpi(
          MPI_Recv(static_cast<char*>(data) + offset, count, MPI_BYTE, peer, 0, comm_, MPI_STATUS_IGNORE),
          "MPI_Recv");
    });
  }

  void exchange(const std::byte* data, const std::vector<int>& begin, std::byte* received) override {
    const std::vector<int> counts = counts_of(begin);
    const int own = counts[static_cast<std::size_t>(rank_)];
    std::vector<int> own_counts(counts.size(), own), own_begin(counts.size());
    for (std::size_t r = 0; r < own_begin.size(); ++r) own_begin[r] = static_cast<int>(r) * own;
    check_mpi(MPI_Alltoallv(data, counts.data(), begin.data(), MPI_BYTE, received, own_counts.data(),
                            own_begin.data(), MPI_BYTE, comm_),
              "MPI_Alltoallv");
  }

  void all_gather(std::byte* data, const std::vector<int>& begin) override {
    const std::vector<int> counts = counts_of(begin);
    check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, data, counts.data(), begin.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv");
  }

  std::shared_ptr<Transport> node() override {
    MPI_Comm local = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local),
              "MPI_Comm_split_type");
    return std::make_shared<MpiTransport>(local);
  }

  [[noreturn]] void abort(int code) override {
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  static std::vector<int> counts_of(const std::vector<int>& begin) {
    std::vector<int> counts(begin.size() - 1);
    for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = begin[r + 1] - begin[r];
    return counts;
  }

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

std::shared_ptr<Transport> world_transport() {
  if (!mpi_is_active()) return self_transport();
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return std::make_shared<MpiTransport>(copy);
}

}  // namespace deltaport::comm
