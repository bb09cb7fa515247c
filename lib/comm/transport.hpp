// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace deltaport::comm {

/// The few message-passing calls that everything else is made of. All collective and blocking; host memory
/// only. Failures throw CommError.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  /// Any length.
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  /// `bytes` from each rank, in rank order, to `received` (size() * bytes) on rank 0. At most 1 GiB in all.
  virtual void gather(const void* data, std::size_t bytes, void* received) = 0;
  /// Any length, to and from rank 0 only: rank r > 0 sends, rank 0 receives from `peer`.
  virtual void send_to_root(const void* data, std::size_t bytes) = 0;
  virtual void receive_from(int peer, void* data, std::size_t bytes) = 0;
  /// Sends bytes [begin[r], begin[r + 1]) of `data` to rank r and receives own_bytes from each rank, in rank
  /// order.
  virtual void exchange(const std::byte* data, const std::vector<int>& begin, std::byte* received) = 0;
  /// Every rank r has bytes [begin[r], begin[r + 1]) of `data`; afterwards all have all.
  virtual void all_gather(std::byte* data, const std::vector<int>& begin) = 0;
  /// The ranks on this node.
  virtual std::shared_ptr<Transport> node() = 0;
  [[noreturn]] virtual void abort(int code) = 0;
};

/// All ranks of the job; one rank alone without MPI or before it is initialised.
std::shared_ptr<Transport> world_transport();
/// One rank alone.
std::shared_ptr<Transport> self_transport();

}  // namespace deltaport::comm
